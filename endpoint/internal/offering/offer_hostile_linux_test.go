package offering_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// hostileMemory returns a memfd of 4096 bytes with these seals.
func hostileMemory(t *testing.T, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "hostile")
	require.NoError(t, f.Truncate(4096))
	if seals != 0 {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
	}
	return f
}

// After a hostile answer of a worker, its caller gets an error with the reason, the owner keeps nothing, and the next
// call succeeds.
func TestOfferHostileAnswers(t *testing.T) {
	fixture.HostOnly(t, "the memory is a memfd")
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{Limits: endpoint.Limits{ObjectBytes: 1 << 20}})
	p := fixture.PolitePeer(t, s.Socket())
	frame, err := p.Send(message.OpOffer, message.Offer{Endpoints: []message.EndpointInfo{{Name: "evil"}}})
	require.NoError(t, err)
	require.Equal(t, wire.KindResponse, frame.Kind)
	p.Refused(message.CodeNotFound, message.OpAnswer, message.Answer{Call: 1, Value: []byte{1}})
	p.Refused(message.CodeNotFound, message.OpAnswer, message.Answer{Call: 1 << 40})

	ended := make(chan error, 1)
	call := func() uint64 {
		go func() {
			x, err := endpoint.Call[*tensor.Tensor](context.Background(), c, "evil", nil)
			if x != nil {
				x.Close()
			}
			ended <- err
		}()
		event, err := p.Conn.Receive()
		require.NoError(t, err)
		require.Equal(t, wire.KindEvent, event.Kind)
		var in message.OfferEvent
		require.NoError(t, message.UnmarshalPayload(event.Body, &in))
		require.Equal(t, "evil", in.Endpoint)
		return in.Call
	}
	host := fixture.Device(t).Info()
	handle := message.Handle{Kind: "memfd", Device: message.UUID(host.UUID), Bytes: 4096}
	size, sealed := unix.F_SEAL_SHRINK|unix.F_SEAL_GROW, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE
	tensorOf := func(elements int64) message.RawMessage {
		raw, err := message.MarshalTagged(message.TagTensor, message.TensorRef{DType: uint8(tensor.Float32), Shape: []int64{elements}})
		require.NoError(t, err)
		return raw
	}
	large := handle
	large.Bytes = 1 << 21
	beyond := handle
	beyond.Bytes = 8192
	for _, row := range []struct {
		what   string
		seals  int
		handle message.Handle
		value  message.RawMessage
		code   message.Code
	}{
		{"a tensor out of bounds", sealed, handle, tensorOf(1025), message.CodeInvalidArgument},
		{"memory that may be written", size, handle, tensorOf(4), message.CodePermissionDenied},
		{"memory that may shrink", 0, handle, tensorOf(4), message.CodeInvalidArgument},
		{"more bytes than there are", sealed, beyond, tensorOf(4), message.CodeInvalidArgument},
		{"more bytes than may be", sealed, large, tensorOf(4), message.CodeResourceExhausted},
		{"no such handle", sealed, handle, message.RawMessage{0xd9, 0xc3, 0x51, 0x85, 7, 12, 0, 0x81, 1, 0x80}, message.CodeSerialization},
		{"another tag", sealed, handle, message.RawMessage{0xc1, 1}, message.CodeSerialization},
	} {
		t.Run(row.what, func(t *testing.T) {
			number := call()
			f := hostileMemory(t, row.seals)
			defer f.Close()
			body, err := message.MarshalPayload(message.Answer{Call: number, Value: row.value, Handles: []message.Handle{row.handle}})
			require.NoError(t, err)
			request, err := message.MarshalPayload(message.Request{Op: message.OpAnswer, Body: body})
			require.NoError(t, err)
			p.ID++
			require.NoError(t, p.Conn.Send(wire.KindRequest, p.ID, request, f))
			frame, err := p.Conn.Receive()
			require.NoError(t, err)
			var e message.Error
			require.NoError(t, message.Unmarshal(frame.Body, &e))
			require.Equal(t, row.code, e.Code, e.Message)
			failed := <-ended
			require.ErrorIs(t, failed, message.CodeInternal)
			require.ErrorContains(t, failed, "invalid answer of the worker")
			p.Refused(message.CodeNotFound, message.OpAnswer, message.Answer{Call: number}) // a second answer
		})
	}
	t.Run("what is the owner's to say", func(t *testing.T) {
		for _, e := range []message.Error{{Code: message.CodeUnavailable, Type: "loading"}, {Code: message.CodeProtocol}, {Code: message.CodeNotFound, Type: "not kept"}} {
			number := call()
			_, err := p.Send(message.OpAnswer, message.Answer{Call: number, Error: &e})
			require.NoError(t, err)
			failed := <-ended
			require.ErrorIs(t, failed, message.CodeInternal)
			require.NotErrorIs(t, failed, endpoint.ErrProtocol)
		}
	})
	t.Run("several where there is one", func(t *testing.T) {
		number := call()
		p.Refused(message.CodeInvalidArgument, message.OpAnswer, message.Answer{Call: number, Value: []byte{1}, More: true})
		_, err := p.Send(message.OpAnswer, message.Answer{Call: number})
		require.NoError(t, err)
		require.NoError(t, <-ended)
	})
	t.Run("none", func(t *testing.T) {
		call()
		p.Conn.Close()
		require.ErrorIs(t, <-ended, endpoint.ErrWorkerGone)
	})
}

// Results arrive one by one while the caller reads them. The function ends when the caller stops.
func TestOfferStreams(t *testing.T) {
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{})
	var counts fixture.Counters
	offering(t, s, &counts, endpoint.OfferOptions{})
	n := 0
	for x, err := range endpoint.Stream[*tensor.Tensor](context.Background(), c, "steps", 100) {
		require.NoError(t, err)
		require.Equal(t, float32(n), fixture.Values(t, x)[0])
		x.Close()
		n++
		require.LessOrEqual(t, counts.Get("step"), uint64(n+2*message.StreamWindow+2), "the worker waits for the reader")
	}
	require.Equal(t, 100, n)
	var last error
	for x, err := range endpoint.Stream[*tensor.Tensor](context.Background(), c, "steps", 7) {
		if last = err; err == nil {
			x.Close()
		}
	}
	require.ErrorIs(t, last, errUsedUp)
	for x, err := range endpoint.Stream[*tensor.Tensor](context.Background(), c, "steps", 1<<30) {
		require.NoError(t, err)
		x.Close()
		break
	}
	proctest.Eventually(t, fixture.WaitLimit, "the function has ended", func() bool { return counts.Get("steps ended") == 3 })
}

// Tasks and cached results of offered endpoints end when the endpoints are withdrawn.
func TestOfferCachedResults(t *testing.T) {
	fixture.HostOnly(t, "the function reads the elements")
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{})
	var counts fixture.Counters
	o := offering(t, s, &counts, endpoint.OfferOptions{})
	ctx := context.Background()
	x, err := fixture.Filled(fixture.Device(t), 4, 3)
	require.NoError(t, err)
	defer x.Close()
	x.Storage().Touch() // a promise: equal versions are equal bytes
	for range 3 {
		y, err := endpoint.Call[*tensor.Tensor](ctx, c, "scale once", factorIn{X: x, Factor: 2})
		require.NoError(t, err)
		require.Equal(t, float32(6), fixture.Values(t, y)[3])
		y.Close()
	}
	require.EqualValues(t, 1, counts.Get("scale"))
	y, err := endpoint.Call[*tensor.Tensor](ctx, c, "scale task", factorIn{X: x, Factor: 3})
	require.NoError(t, err)
	require.Equal(t, float32(9), fixture.Values(t, y)[3])
	y.Close()
	require.NoError(t, o.Close())
	_, err = endpoint.Call[*tensor.Tensor](ctx, c, "scale once", factorIn{X: x, Factor: 2})
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
}

// The caller has not taken the last item when the worker disconnects. It gets the items and then ErrWorkerGone.
func TestOfferWorkerGoneDuringItem(t *testing.T) {
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{})
	for range 20 {
		p := fixture.PolitePeer(t, s.Socket())
		frame, err := p.Send(message.OpOffer, message.Offer{Endpoints: []message.EndpointInfo{{Name: "ends", Stream: true}}})
		require.NoError(t, err)
		require.Equal(t, wire.KindResponse, frame.Kind)
		ended := make(chan error, 1)
		read := make(chan struct{})
		go func() {
			var last error
			for _, err := range endpoint.Stream[int](context.Background(), c, "ends", nil) {
				<-read
				last = err
			}
			ended <- last
		}()
		event, err := p.Conn.Receive()
		require.NoError(t, err)
		require.Equal(t, wire.KindEvent, event.Kind)
		item := message.Answer{Call: 1, Value: []byte{1}, More: true}
		for range message.StreamWindow {
			frame, err = p.Send(message.OpAnswer, item)
			require.NoError(t, err)
			require.Equal(t, wire.KindResponse, frame.Kind)
		}
		body, err := message.Marshal(item)
		require.NoError(t, err)
		request, err := message.Marshal(message.Request{Op: message.OpAnswer, Body: body})
		require.NoError(t, err)
		p.ID++
		require.NoError(t, p.Conn.Send(wire.KindRequest, p.ID, request)) // the caller has no room for this one
		p.Conn.Close()
		proctest.Eventually(t, fixture.WaitLimit, "the endpoint is withdrawn", func() bool {
			list, err := c.Endpoints(context.Background())
			require.NoError(t, err)
			return len(list) == 0
		})
		close(read)
		require.ErrorIs(t, <-ended, endpoint.ErrWorkerGone)
	}
}
