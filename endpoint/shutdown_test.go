package endpoint

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
)

// A function ignores its context while the server closes.
func TestServerCloseDuringCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(*Server) error
		took time.Duration
		err  error
	}{
		{"Shutdown whose time is over", func(s *Server) error {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			return s.Shutdown(ctx)
		}, 100 * time.Millisecond, context.DeadlineExceeded},
		{"Close", (*Server).Close, time.Second, nil},
	} {
		for _, opts := range [][]Option{{Cached()}, nil, {AsTask()}} {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					gate := make(chan struct{})
					r := NewRegistry()
					require.NoError(t, Register(r, "stubborn", func(context.Context, struct{}) (int, error) { <-gate; return 1, nil }, opts...))
					s, err := newServer(ServerOptions{Registry: r, Logger: slog.New(slog.DiscardHandler)})
					require.NoError(t, err)
					called := make(chan error, 1)
					go func() { called <- s.Call(context.Background(), "stubborn", nil, nil) }()
					synctest.Wait()
					start := time.Now()
					if err := c.end(s); c.err == nil {
						require.NoError(t, err)
					} else {
						require.ErrorIs(t, err, c.err)
					}
					require.LessOrEqual(t, time.Since(start), c.took)
					close(gate)
					<-called
				})
			})
		}
	}
}

func TestTaskSubmitAfterClose(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	require.NoError(t, Register(r, "x", func(context.Context, struct{}) (int, error) { return 1, nil }, AsTask()))
	s, err := newServer(ServerOptions{Registry: r, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.core.Engine.Tasks.Shutdown(context.Background()))
	_, err = s.Submit(context.Background(), "x", nil)
	require.ErrorIs(t, err, status.ErrUnavailable)
	require.ErrorIs(t, err, task.ErrShutdown)
	require.ErrorIs(t, s.Call(context.Background(), "x", nil, nil), status.ErrUnavailable)
}
