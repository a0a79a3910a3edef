package stream_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestPutAndGet(t *testing.T) {
	dev := remotetest.OpenHost(t)
	before := memfds(t)
	set := makeSet(t, dev, "model", 5<<20+3)
	set.Tensors.Metadata = map[string]string{"by": "test"}
	sink := &keepSink{}
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Source: setSource{set}})
	client := newClient(t, address, dev)

	receipt, err := client.Put(t.Context(), set)
	require.NoError(t, err)
	require.Equal(t, uint64(1), receipt.Version)
	require.Equal(t, 1, receipt.Calls)
	require.Len(t, sink.sets, 1)
	requireEqualSets(t, set.Tensors, sink.sets[0].Tensors)
	require.Equal(t, set.Tensors.Metadata, sink.sets[0].Tensors.Metadata)
	require.Len(t, sink.sets[0].Tensors.Storages(), 1, "one piece of memory for all tensors")

	got, err := client.Get(t.Context(), stream.Request{Name: "model"})
	require.NoError(t, err)
	requireEqualSets(t, set.Tensors, got.Tensors)
	require.NoError(t, got.Close())

	_, err = client.Get(t.Context(), stream.Request{Name: "other"})
	require.ErrorIs(t, err, stream.ErrNotFound)
	require.ErrorContains(t, err, `"other"`)
	sink.close()
	set.Close()
	requireMemfds(t, before)
}

// A Put resumes after its connection broke twice during the transfer.
func TestPutResumes(t *testing.T) {
	dev := remotetest.OpenHost(t)
	before := memfds(t)
	set := makeSet(t, dev, "model", 48<<20)
	sink := &keepSink{}
	defer sink.close()
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink})
	proxy := newCutter(t, address, true, 20<<20, 10<<20)
	client := stream.NewClient(dial(t, proxy.address), stream.ClientOptions{Device: dev, Backoff: 10 * time.Millisecond})
	receipt, err := client.Put(t.Context(), set)
	require.NoError(t, err)
	require.Equal(t, 3, receipt.Calls)
	require.Less(t, receipt.Sent, int64(90<<20), "what had arrived was not sent again, but for what was on its way")
	require.Len(t, sink.sets, 1)
	requireEqualSets(t, set.Tensors, sink.sets[0].Tensors)
	sink.close()
	set.Close()
	requireMemfds(t, before)
}

func TestGetResumes(t *testing.T) {
	dev := remotetest.OpenHost(t)
	set := makeSet(t, dev, "model", 48<<20)
	set.ID = "model@7"
	_, address := serve(t, stream.ServerOptions{Device: dev, Source: setSource{set}})
	proxy := newCutter(t, address, false, 20<<20, 10<<20)
	last := int64(0)
	client := stream.NewClient(dial(t, proxy.address), stream.ClientOptions{Device: dev, Backoff: 10 * time.Millisecond, Progress: func(done, total int64) {
		require.GreaterOrEqual(t, done, last, "no byte is fetched twice")
		require.LessOrEqual(t, done, total)
		last = done
	}})
	got, err := client.Get(t.Context(), stream.Request{Name: "model"})
	require.NoError(t, err)
	defer got.Close()
	requireEqualSets(t, set.Tensors, got.Tensors)
}

// If the connection breaks after the last byte, the client repeats the call and the sink receives the set once.
func TestPutAnswerLost(t *testing.T) {
	dev := remotetest.OpenHost(t)
	set := makeSet(t, dev, "model", 1<<20)
	taken, lost := make(chan struct{}), make(chan struct{})
	sink := stream.SinkFunc(func(_ context.Context, s *stream.Set) (uint64, error) {
		close(taken) // a second call panics
		<-lost
		return 42, s.Close()
	})
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink})
	conn := dial(t, address)
	client := stream.NewClient(conn, stream.ClientOptions{Device: dev, Attempts: 1})
	set.ID = "the same"
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-taken; cancel() }()
	_, err := client.Put(ctx, set)
	require.ErrorIs(t, err, context.Canceled)
	close(lost)
	require.Eventually(t, func() bool {
		receipt, err := client.Put(t.Context(), set)
		return err == nil && receipt.Version == 42 && receipt.Sent == 0
	}, 10*time.Second, 20*time.Millisecond)
}

// A Put whose connection breaks between the last byte and the answer returns ErrUnknown.
func TestUnknownOutcome(t *testing.T) {
	dev := remotetest.OpenHost(t)
	set := makeSet(t, dev, "model", 1<<20)
	taken, cut := make(chan struct{}), make(chan struct{})
	sink := stream.SinkFunc(func(_ context.Context, s *stream.Set) (uint64, error) {
		close(taken)
		<-cut
		return 0, s.Close()
	})
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink})
	through := newCutter(t, address, true)
	once := stream.NewClient(dial(t, through.address), stream.ClientOptions{Device: dev, Attempts: 1})
	go func() { <-taken; through.cut(); close(cut) }()
	_, err := once.Put(t.Context(), set)
	require.ErrorIs(t, err, stream.ErrUnknown)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

func TestExchange(t *testing.T) {
	dev := remotetest.OpenHost(t)
	before := memfds(t)
	double := stream.ProcessorFunc(func(_ context.Context, item *stream.Item) (*tensor.Tensor, error) {
		values, err := tensor.Float32s(item.Tensor)
		if err != nil {
			return nil, err
		}
		for i := range values {
			values[i] *= 2
		}
		return tensor.FromSlice(dev, item.Tensor.Shape(), values)
	})
	_, address := serve(t, stream.ServerOptions{Device: dev, Processor: double})
	client := newClient(t, address, dev)
	x, err := client.Exchange(t.Context())
	require.NoError(t, err)
	defer x.Close()
	const n = 40
	go func() {
		for i := range n {
			in, err := tensor.FromSlice(dev, tensor.Shape{1 << 18}, make([]float32, 1<<18))
			if err != nil {
				panic(err)
			}
			data, _ := tensor.Data[float32](in)
			for j := range data {
				data[j] = float32(i)
			}
			if err := x.Send(&stream.Item{ID: fmt.Sprint(i), Tensor: in}); err != nil {
				panic(err)
			}
			in.Close()
		}
		x.CloseSend()
	}()
	for i := range n {
		item, err := x.Recv()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), item.ID)
		values, err := tensor.Float32s(item.Tensor)
		require.NoError(t, err)
		require.Equal(t, float32(2*i), values[len(values)-1])
		require.NoError(t, item.Tensor.Close())
	}
	_, err = x.Recv()
	require.ErrorIs(t, err, io.EOF)
	requireMemfds(t, before)
}

func TestProcessorPanics(t *testing.T) {
	dev := remotetest.OpenHost(t)
	_, address := serve(t, stream.ServerOptions{Device: dev, Processor: stream.ProcessorFunc(func(context.Context, *stream.Item) (*tensor.Tensor, error) {
		panic("oops")
	})})
	x, err := newClient(t, address, dev).Exchange(t.Context())
	require.NoError(t, err)
	defer x.Close()
	one, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{3})
	require.NoError(t, err)
	defer one.Close()
	require.NoError(t, x.Send(&stream.Item{ID: "a", Tensor: one}))
	_, err = x.Recv()
	require.Equal(t, codes.Internal, status.Code(err))
	require.ErrorContains(t, err, "oops")
}

// Messages that contradict the description are refused, and nothing is allocated for false claims.
func TestContradictoryMessages(t *testing.T) {
	dev := remotetest.OpenHost(t)
	before := memfds(t)
	sink := &keepSink{}
	server, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Limits: stream.Limits{TensorBytes: 1 << 30, PendingBytes: 2 << 30, Tensors: 10}})
	rpc := streampb.NewTensorStreamClient(dial(t, address))
	spec := func(dtype string, shape ...int64) *streampb.TensorSpec {
		return &streampb.TensorSpec{Name: "x", Dtype: dtype, Shape: shape}
	}
	many := make([]*streampb.TensorSpec, 11)
	for i := range many {
		many[i] = &streampb.TensorSpec{Name: fmt.Sprint(i), Dtype: "uint8"}
	}
	for name, c := range map[string]struct {
		specs  []*streampb.TensorSpec
		chunks []*streampb.Chunk
		code   codes.Code
		word   string
	}{
		"huge":           {[]*streampb.TensorSpec{spec("float32", 1<<40)}, nil, codes.ResourceExhausted, "bytes are more than"},
		"overflow":       {[]*streampb.TensorSpec{spec("float32", 1<<40, 1<<40)}, nil, codes.InvalidArgument, "overflow"},
		"negative":       {[]*streampb.TensorSpec{spec("float32", -1)}, nil, codes.InvalidArgument, "shape"},
		"unknown type":   {[]*streampb.TensorSpec{spec("float33", 1)}, nil, codes.InvalidArgument, "float33"},
		"twice":          {[]*streampb.TensorSpec{spec("uint8", 1), spec("uint8", 1)}, nil, codes.InvalidArgument, "two tensors"},
		"too many":       {many, nil, codes.ResourceExhausted, "11 tensors"},
		"ends early":     {[]*streampb.TensorSpec{spec("uint8", 4)}, []*streampb.Chunk{{Data: []byte{1}, Crc32C: 0xa016d052}}, codes.FailedPrecondition, "1 of 4 bytes"},
		"too much":       {[]*streampb.TensorSpec{spec("uint8", 4)}, []*streampb.Chunk{{Data: make([]byte, 5)}}, codes.InvalidArgument, "5 bytes at 0"},
		"gap":            {[]*streampb.TensorSpec{spec("uint8", 4)}, []*streampb.Chunk{{Data: []byte{1}, Offset: 2}}, codes.InvalidArgument, "1 bytes at 2"},
		"far offset":     {[]*streampb.TensorSpec{spec("uint8", 4)}, []*streampb.Chunk{{Data: []byte{1}, Offset: 1 << 63}}, codes.InvalidArgument, "where 0 of 4"},
		"wrong checksum": {[]*streampb.TensorSpec{spec("uint8", 4)}, []*streampb.Chunk{{Data: make([]byte, 4), Crc32C: 1}}, codes.DataLoss, "checksum"},
		"no such tensor": {[]*streampb.TensorSpec{spec("uint8", 4)}, []*streampb.Chunk{{Data: make([]byte, 4), Tensor: 9}}, codes.InvalidArgument, "tensor 9 of 1"},
	} {
		t.Run(name, func(t *testing.T) {
			call, err := rpc.Put(t.Context())
			require.NoError(t, err)
			require.NoError(t, call.Send(&streampb.Chunk{Set: &streampb.Set{Name: "m", Tensors: c.specs}}))
			for _, chunk := range c.chunks {
				if err := call.Send(chunk); err != nil {
					require.ErrorIs(t, err, io.EOF)
				}
			}
			require.NoError(t, call.CloseSend())
			for err == nil {
				_, err = call.Recv()
			}
			require.Equal(t, c.code, status.Code(err), "%v", err)
			require.ErrorContains(t, err, c.word)
		})
	}
	require.Empty(t, sink.sets)
	require.Zero(t, server.PendingBytes())
	requireMemfds(t, before)
}

// Calls of peers that neither send nor read end, and their memory is released.
func TestStalledPeers(t *testing.T) {
	dev := remotetest.OpenHost(t)
	set := makeSet(t, dev, "model", 64<<20)
	limits := stream.Limits{Stall: 200 * time.Millisecond, ResumeFor: 200 * time.Millisecond, Window: 1 << 20}
	server, address := serve(t, stream.ServerOptions{Device: dev, Sink: &keepSink{}, Source: setSource{set}, Limits: limits})
	rpc := streampb.NewTensorStreamClient(dial(t, address))

	put, err := rpc.Put(t.Context())
	require.NoError(t, err)
	require.NoError(t, put.Send(&streampb.Chunk{Set: &streampb.Set{Id: "a", Tensors: []*streampb.TensorSpec{{Name: "x", Dtype: "uint8", Shape: []int64{1 << 20}}}}}))
	for err == nil {
		_, err = put.Recv()
	}
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	require.Eventually(t, func() bool { return server.PendingBytes() == 0 }, 5*time.Second, 10*time.Millisecond)

	get, err := rpc.Get(t.Context())
	require.NoError(t, err)
	require.NoError(t, get.Send(&streampb.GetRequest{Name: "model", Credit: 1 << 20}))
	for err == nil {
		_, err = get.Recv()
	}
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
}

// The owner's socket is revealed only to clients on this host.
func TestLocal(t *testing.T) {
	dev := remotetest.OpenHost(t)
	_, address := serve(t, stream.ServerOptions{Device: dev, Socket: func() string { return "/run/owner.sock" }})
	socket, err := newClient(t, address, dev).Local(t.Context())
	require.NoError(t, err)
	require.Equal(t, "/run/owner.sock", socket)
	for _, proof := range [][]byte{nil, make([]byte, 32)} {
		reply, err := streampb.NewTensorStreamClient(dial(t, address)).Local(t.Context(), &streampb.LocalRequest{HostProof: proof})
		require.NoError(t, err)
		require.Empty(t, reply.GetSocket())
	}
}

func TestNotServed(t *testing.T) {
	dev := remotetest.OpenHost(t)
	_, address := serve(t, stream.ServerOptions{Device: dev})
	client := newClient(t, address, dev)
	_, err := client.Put(t.Context(), makeSet(t, dev, "m", 1))
	require.ErrorIs(t, err, stream.ErrNotServed)
	_, err = client.Get(t.Context(), stream.Request{Name: "m"})
	require.ErrorIs(t, err, stream.ErrNotServed)
}
