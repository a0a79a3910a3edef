package session_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// causeRegistry has endpoints that wait for the end of their context and report its cause.
func causeRegistry(t *testing.T, started chan<- struct{}, causes chan<- error) *endpoint.Registry {
	t.Helper()
	r := new(endpoint.Registry)
	wait := func(ctx context.Context, _ int) (int, error) {
		started <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return 0, ctx.Err()
	}
	require.NoError(t, endpoint.Register(r, "cached", wait, endpoint.Cached()))
	require.NoError(t, endpoint.Register(r, "uncached", wait))
	require.NoError(t, endpoint.RegisterStream(r, "stream", func(ctx context.Context, _ int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			yield(1, nil)
			_, err := wait(ctx, 0)
			yield(0, err)
		}
	}))
	return r
}

// The cause with which a caller cancels is the cause of the function's context.
func TestCancelCause(t *testing.T) {
	drivertest.Leaks(t)
	started, causes := make(chan struct{}, 1), make(chan error, 1)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Registry: causeRegistry(t, started, causes)})
	for _, overSocket := range []bool{true, false} {
		c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: overSocket})
		require.NoError(t, err)
		for _, name := range []string{"cached", "uncached", "stream"} {
			errFull := errors.New("the batch is full")
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() {
				if name != "stream" {
					done <- c.Call(ctx, name, 1, nil)
					return
				}
				for _, err := range endpoint.Stream[int](ctx, c, name, 1) {
					if err != nil {
						done <- err
						return
					}
				}
			}()
			<-started
			cancel(errFull)
			require.ErrorIs(t, <-done, errFull)
			cause := <-causes
			require.ErrorIs(t, cause, context.Canceled, "%s, over a socket: %v", name, overSocket)
			require.ErrorContains(t, cause, "the batch is full", "%s, over a socket: %v", name, overSocket)
		}
		require.NoError(t, c.Close())
	}
}

// A peer's reason is cut and made printable.
func TestCancelReasonIsBounded(t *testing.T) {
	t.Parallel()
	started, causes := make(chan struct{}, 1), make(chan error, 1)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Registry: causeRegistry(t, started, causes)})
	p := fixture.PolitePeer(t, s.Socket())
	id := p.Begin(message.OpCall, message.Call{Endpoint: "uncached", Args: []byte{1}}, 0)
	body, err := message.Marshal(message.Cancel{Reason: "stop\x1b[2J\n" + strings.Repeat("x", 1<<16)})
	require.NoError(t, err)
	<-started
	require.NoError(t, p.Conn.Send(wire.KindCancel, id, body))
	text := (<-causes).Error()
	require.Contains(t, text, "stop[2Jxxx")
	require.Less(t, len(text), 512)
	var e message.Error
	next(p, wire.KindError, id, &e)
	require.Equal(t, message.CodeCanceled, e.Code)
}
