package stream_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/module"
)

// synthetic returns a set with the given id and generated contents.
func synthetic(t *testing.T, dev *host.Device, id string, seed uint64, bytes int64) *stream.Set {
	t.Helper()
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 3, Bytes: bytes, Seed: seed})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sd.Close() })
	return &stream.Set{ID: id, Name: "m", Tensors: sd}
}

// An id belongs to one set of one client. A repetition of that set receives its outcome. A different set is refused and
// not stored.
func TestPutIDReused(t *testing.T) {
	dev := remotetest.OpenHost(t)
	sink := &keepSink{}
	defer sink.close()
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Limits: stream.Limits{OutcomesFor: time.Hour}})
	client := newClient(t, address, dev)
	first := synthetic(t, dev, "x", 1, 1<<20)
	receipt, err := client.Put(t.Context(), first)
	require.NoError(t, err)
	require.EqualValues(t, 1, receipt.Version)

	again, err := client.Put(t.Context(), first)
	require.NoError(t, err)
	require.EqualValues(t, 1, again.Version)
	require.Zero(t, again.Sent, "a repetition sends no bytes")

	for name, other := range map[string]*stream.Set{
		"other shapes":   synthetic(t, dev, "x", 1, 2<<20),
		"other name":     {ID: "x", Name: "n", Tensors: first.Tensors},
		"other metadata": {ID: "x", Name: "m", Tensors: withMetadata(t, first.Tensors)},
	} {
		_, err := client.Put(t.Context(), other)
		require.ErrorIs(t, err, stream.ErrInvalid, name)
		require.ErrorContains(t, err, "use a new id", name)
	}
	require.Len(t, sink.sets, 1)
}

func withMetadata(t *testing.T, from *module.StateDict) *module.StateDict {
	t.Helper()
	sd := from.Alias()
	t.Cleanup(func() { _ = sd.Close() })
	sd.Metadata = map[string]string{"step": "2"}
	return sd
}

// Sets with equal descriptions are compared by their bytes.
func TestPutIDReusedWithOtherBytes(t *testing.T) {
	dev := remotetest.OpenHost(t)
	sink := &keepSink{}
	defer sink.close()
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink})
	client := newClient(t, address, dev)
	_, err := client.Put(t.Context(), synthetic(t, dev, "x", 1, 1<<20))
	require.NoError(t, err)
	_, err = client.Put(t.Context(), synthetic(t, dev, "x", 2, 1<<20))
	require.ErrorIs(t, err, stream.ErrInvalid)
	require.ErrorContains(t, err, "use a new id")
	require.Len(t, sink.sets, 1)
	receipt, err := client.Put(t.Context(), synthetic(t, dev, "x", 1, 1<<20))
	require.NoError(t, err, "the same bytes from other memory")
	require.EqualValues(t, 1, receipt.Version)
	require.Len(t, sink.sets, 1)
}

// An id can be reused after OutcomesFor.
func TestPutOutcomeExpires(t *testing.T) {
	dev := remotetest.OpenHost(t)
	sink := &keepSink{}
	defer sink.close()
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Limits: stream.Limits{OutcomesFor: time.Millisecond}})
	client := newClient(t, address, dev)
	set := synthetic(t, dev, "x", 1, 4096)
	for want := range 2 {
		require.Eventually(t, func() bool {
			receipt, err := client.Put(t.Context(), set)
			return err == nil && receipt.Version == uint64(want+1)
		}, time.Minute, 10*time.Millisecond)
	}
}

// slowSink accepts a set when the test allows it.
type slowSink struct {
	keepSink
	entered, free chan struct{}
}

func (s *slowSink) Receive(ctx context.Context, set *stream.Set) (uint64, error) {
	s.entered <- struct{}{}
	<-s.free
	return s.keepSink.Receive(ctx, set)
}

// A repetition of a Put that the sink is processing receives its outcome, or an error that requests a retry. The sink
// receives the set once.
func TestPutDuringDelivery(t *testing.T) {
	dev := remotetest.OpenHost(t)
	sink := &slowSink{entered: make(chan struct{}, 10), free: make(chan struct{})}
	defer sink.close()
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Limits: stream.Limits{Stall: 500 * time.Millisecond}})
	set := synthetic(t, dev, "x", 1, 4096)
	put := func(attempts int) (*stream.Receipt, error) {
		return stream.NewClient(dial(t, address), stream.ClientOptions{Device: dev, Attempts: attempts}).Put(t.Context(), set)
	}
	type result struct {
		receipt *stream.Receipt
		err     error
	}
	results := make(chan result, 2)
	go func() {
		receipt, err := put(1)
		results <- result{receipt, err}
	}()
	<-sink.entered
	_, err := put(1)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	go func() {
		receipt, err := put(1000)
		results <- result{receipt, err}
	}()
	close(sink.free)
	for range 2 {
		r := <-results
		require.NoError(t, r.err)
		require.EqualValues(t, 1, r.receipt.Version)
	}
	require.Len(t, sink.sets, 1)
}

// An announced size does not count towards the budget, and a transfer over the budget ends.
func TestPutChargesArrivedBytes(t *testing.T) {
	dev, err := host.Open(host.Lazy())
	require.NoError(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	sink := &keepSink{}
	defer sink.close()
	server, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Limits: stream.Limits{TensorBytes: 1 << 30, PendingBytes: 1 << 30}})
	rpc := streampb.NewTensorStreamClient(dial(t, address))
	for range 3 {
		call, err := rpc.Put(t.Context())
		require.NoError(t, err)
		require.NoError(t, call.Send(&streampb.Chunk{Set: &streampb.Set{
			Name: "large", Tensors: []*streampb.TensorSpec{{Name: "a", Dtype: "uint8", Shape: []int64{1 << 30}}},
		}}))
		_, err = call.Recv()
		require.NoError(t, err, "an announced GiB")
	}
	require.Less(t, server.PendingBytes(), int64(1<<20))
	_, err = newClient(t, address, dev).Put(t.Context(), synthetic(t, dev, "", 1, 8<<20))
	require.NoError(t, err)

	small, at := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Limits: stream.Limits{TensorBytes: 16 << 20, PendingBytes: 16 << 20}})
	held, err := streampb.NewTensorStreamClient(dial(t, at)).Put(t.Context())
	require.NoError(t, err)
	require.NoError(t, held.Send(&streampb.Chunk{Set: &streampb.Set{
		Name: "half", Tensors: []*streampb.TensorSpec{{Name: "a", Dtype: "uint8", Shape: []int64{16 << 20}}},
	}}))
	_, err = held.Recv()
	require.NoError(t, err)
	data := make([]byte, 1<<20)
	crc := uint32(0)
	for i := range 10 {
		crc = checksum(crc, data)
		require.NoError(t, held.Send(&streampb.Chunk{Data: data, Offset: uint64(i << 20), Crc32C: crc}))
	}
	require.Eventually(t, func() bool { return small.PendingBytes() >= 10<<20 }, time.Minute, time.Millisecond)
	_, err = stream.NewClient(dial(t, at), stream.ClientOptions{Device: dev, Attempts: 1}).Put(t.Context(), synthetic(t, dev, "", 1, 8<<20))
	require.ErrorIs(t, err, stream.ErrLimit)
}

// A sender that sends complete chunks too rarely is disconnected.
func TestPutBelowTheMinimumRate(t *testing.T) {
	dev := remotetest.OpenHost(t)
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: &keepSink{}, Limits: stream.Limits{Stall: 2 * time.Second, MinRate: 1 << 20, ResumeFor: time.Millisecond}})
	call, err := streampb.NewTensorStreamClient(dial(t, address)).Put(t.Context())
	require.NoError(t, err)
	require.NoError(t, call.Send(&streampb.Chunk{Set: &streampb.Set{
		Name: "slow", Tensors: []*streampb.TensorSpec{{Name: "a", Dtype: "uint8", Shape: []int64{1 << 20}}},
	}}))
	go func() {
		crc := uint32(0)
		for i := range 1 << 20 {
			crc = checksum(crc, []byte{0})
			if call.Send(&streampb.Chunk{Data: []byte{0}, Offset: uint64(i), Crc32C: crc}) != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	for err == nil {
		_, err = call.Recv()
	}
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
}

// Equal ids of different clients are independent, and each client has a share of the budget.
func TestIdentitiesAreSeparate(t *testing.T) {
	dev := remotetest.OpenHost(t)
	sink := &keepSink{}
	defer sink.close()
	_, address := serveAs(t, stream.ServerOptions{Device: dev, Sink: sink, Limits: stream.Limits{TensorBytes: 16 << 20, PendingBytes: 16 << 20}})
	alice, bob := clientAs(t, address, dev, "alice"), clientAs(t, address, dev, "bob")
	first, err := alice.Put(t.Context(), synthetic(t, dev, "x", 1, 1<<20))
	require.NoError(t, err)
	second, err := bob.Put(t.Context(), synthetic(t, dev, "x", 2, 1<<20))
	require.NoError(t, err, "the id is another client's")
	require.NotEqual(t, first.Version, second.Version)
	_, err = alice.Put(t.Context(), synthetic(t, dev, "", 1, 12<<20))
	require.ErrorIs(t, err, stream.ErrLimit, "more than half of the budget")
	_, err = bob.Put(t.Context(), synthetic(t, dev, "", 1, 6<<20))
	require.NoError(t, err)
}
