package inference

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// panicking panics when it is closed.
type panicking struct{}

func (panicking) Close() error { panic("close") }

// waitingRequest is a request of a model without a caller: calling its function panics.
func waitingRequest(ctx context.Context, closers ...io.Closer) *batched {
	return &batched{
		ctx: ctx, model: &model{name: "m", stats: &recorder{}}, argument: &argument{closers: closers}, rows: 1, key: "k", done: make(chan struct{}),
	}
}

// Each place of batching that panics fails the requests of its batch. The batcher runs later batches.
func TestPanicsOfBatchesFailTheirRequests(t *testing.T) {
	for name, c := range map[string]struct {
		batching
		closers []io.Closer
		break_  func(*batched) // breaks a request after it was made
	}{
		"the function":              {batching{2, 0}, nil, func(*batched) {}},
		"the function, in a timer":  {batching{2, time.Millisecond}, nil, func(*batched) {}},
		"closing an argument":       {batching{2, 0}, []io.Closer{panicking{}}, func(*batched) {}},
		"the statistics of a model": {batching{2, 0}, nil, func(b *batched) { b.model.stats = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			b := &batcher{batching: c.batching, limit: 10}
			for range 3 {
				one := waitingRequest(t.Context(), c.closers...)
				c.break_(one)
				_, err := b.call(one)
				require.ErrorIs(t, err, contain.ErrPanic)
			}
			require.Zero(t, b.waiting())
		})
	}
	t.Run("starting a batch", func(t *testing.T) {
		b := &batcher{batching: batching{2, 0}, limit: 10}
		b.queue = []*batched{waitingRequest(t.Context()), nil}
		first := b.queue[0]
		b.dispatch()
		<-first.done
		require.ErrorIs(t, first.err, contain.ErrPanic)
		require.Zero(t, b.waiting())
		_, err := b.call(waitingRequest(t.Context()))
		require.ErrorIs(t, err, contain.ErrPanic, "the batcher continues")
	})
	t.Run("a request that has left", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		b := &batcher{batching: batching{2, 0}, limit: 10, running: true}
		one := waitingRequest(ctx, panicking{})
		go func() {
			for b.waiting() == 0 {
				time.Sleep(time.Millisecond)
			}
			b.mu.Lock()
			b.queue = nil // as if it were part of a running batch
			b.mu.Unlock()
			leave()
		}()
		_, err := b.call(one)
		require.ErrorIs(t, err, context.Canceled)
		one.finish(nil, nil)
	})
}

// streamCall is a call of ModelStreamInfer with given requests.
type streamCall struct {
	grpc.ServerStream
	ctx      context.Context
	requests []*pb.ModelInferRequest
	sent     []*pb.ModelStreamInferResponse
}

func (c *streamCall) Context() context.Context                { return c.ctx }
func (c *streamCall) Recv() (*pb.ModelInferRequest, error)    { return nil, io.EOF }
func (c *streamCall) Send(*pb.ModelStreamInferResponse) error { return nil }
func (c *streamCall) RecvMsg(m any) error {
	if len(c.requests) == 0 {
		return io.EOF
	}
	m.(*bulk.Parts).Head, c.requests = c.requests[0], c.requests[1:] //nolint:forcetypeassert // of the service
	return nil
}

func (c *streamCall) SendMsg(m any) error {
	c.sent = append(c.sent, m.(*pb.ModelStreamInferResponse)) //nolint:forcetypeassert // an error
	return nil
}

// A panic in the goroutine of a stream's request is its error. The requests around it are answered in order.
func TestPanicsOfStreamsFailTheirRequests(t *testing.T) {
	call := &streamCall{ctx: t.Context()}
	for _, id := range []string{"1", "2", "3"} {
		call.requests = append(call.requests, &pb.ModelInferRequest{Id: id, ModelName: "m"})
	}
	service := grpcService{service: &service{}} // without an environment
	require.NoError(t, service.ModelStreamInfer(call))
	require.Len(t, call.sent, 3)
	for i, id := range []string{"1", "2", "3"} {
		require.Equal(t, id, call.sent[i].GetInferResponse().GetId())
		require.Contains(t, call.sent[i].GetErrorMessage(), contain.ErrPanic.Error())
	}
}
