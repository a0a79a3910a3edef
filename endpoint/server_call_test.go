package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/stretchr/testify/require"
)

// Functions call their own server while its reader runs them: another goroutine reads at once, and not only after a
// timer. In the bubble time advances only while all goroutines wait.
func TestServerCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry()
		var s *Server
		require.NoError(t, Register(r, "inner", func(_ context.Context, n int) (int, error) { return n + 1, nil }))
		require.NoError(t, Register(r, "outer", func(ctx context.Context, n int) (out int, err error) {
			err = s.Call(ctx, "inner", n, &out)
			return out, err
		}))
		s, err := newServer(ServerOptions{Registry: r, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		defer s.Close()
		start := time.Now()
		for n := range 100 {
			got, err := Call[int](context.Background(), s, "outer", n)
			require.NoError(t, err)
			require.Equal(t, n+1, got)
		}
		require.Zero(t, time.Since(start))
	})
}

// A function called within the process sees the values of its caller's context, its deadline, and the cause of its end.
func TestServerCallContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	r := NewRegistry()
	began, ended := make(chan struct{}), make(chan error, 1)
	require.NoError(t, Register(r, "value", func(ctx context.Context, _ struct{}) (string, error) { return ctx.Value(key{}).(string), nil }))
	require.NoError(t, Register(r, "deadline", func(ctx context.Context, _ struct{}) (int64, error) {
		end, _ := ctx.Deadline()
		return end.UnixNano(), nil
	}))
	require.NoError(t, Register(r, "wait", func(ctx context.Context, _ struct{}) (int, error) {
		close(began)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return 0, context.Cause(ctx)
	}))
	s, err := newServer(ServerOptions{Registry: r, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer s.Close()
	value, err := Call[string](context.WithValue(context.Background(), key{}, "mine"), s, "value", nil)
	require.NoError(t, err)
	require.Equal(t, "mine", value)
	limited, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	end, _ := limited.Deadline()
	got, err := Call[int64](limited, s, "deadline", nil)
	require.NoError(t, err)
	require.Equal(t, end.UnixNano(), got)
	why := errors.New("enough")
	left, leave := context.WithCancelCause(context.Background())
	go func() { <-began; leave(why) }()
	require.ErrorIs(t, s.Call(left, "wait", nil, nil), why)
	require.ErrorIs(t, <-ended, why)
}

// Calls within the process do not count as clients, even after their connection broke.
func TestServerCallIsNoClient(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	require.NoError(t, Register(r, "x", func(context.Context, int) (int, error) { return 1, nil }))
	s, err := newServer(ServerOptions{Registry: r, Logger: slog.New(slog.DiscardHandler), Limits: Limits{Clients: 1, Requests: 1, Subscriptions: 1}})
	require.NoError(t, err)
	defer s.Close()
	for range 2 {
		_, err = Call[int](context.Background(), s, "x", 1)
		require.NoError(t, err)
		info, err := s.ServerInfo(context.Background())
		require.NoError(t, err)
		require.Zero(t, info.Stats.Clients)
		require.Len(t, info.Sessions, 1)
		require.True(t, info.Sessions[0].Self)
		require.Empty(t, s.core.Sessions.Clients())
		self := s.core.Sessions.Self()
		l := s.own.conn.Current()
		self.Cut()
		<-l.Done
		require.Eventually(t, func() bool { // for a moment there are two
			return len(s.core.Sessions.Of([]uint64{self.ID})) == 0
		}, 10*time.Second, time.Millisecond)
	}
}

// The limits of clients do not apply to calls within the process.
func TestServerCallHasNoRequestTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry()
		require.NoError(t, Register(r, "slow", func(ctx context.Context, n int) (int, error) {
			if _, limited := ctx.Deadline(); limited {
				return 0, errors.New("the call has a deadline")
			}
			select {
			case <-time.After(time.Minute):
				return n, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}))
		require.NoError(t, Register(r, "object", func(_ context.Context, n int) (int, error) { return n, nil }, Managed()))
		s, err := newServer(ServerOptions{
			Registry: r, Logger: slog.New(slog.DiscardHandler), Limits: Limits{RequestTime: time.Second, Objects: 1, Subscriptions: 1},
		})
		require.NoError(t, err)
		defer s.Close()
		got, err := Call[int](context.Background(), s, "slow", 7)
		require.NoError(t, err)
		require.Equal(t, 7, got)
		for n := range 3 {
			ref, err := CallManaged[int](context.Background(), s, "object", n)
			require.NoError(t, err)
			defer ref.Close()
		}
		require.Zero(t, s.core.Sessions.Totals.Refusals.Of(status.LimitRequestTime))
	})
}

// ServerInfo of a stuck server ends although its context does not.
func TestServerInfoTimeout(t *testing.T) {
	t.Parallel()
	s, err := newServer(ServerOptions{})
	require.NoError(t, err)
	_, err = s.ServerInfo(context.Background())
	require.NoError(t, err)
	s.infoTimeout = 10 * time.Millisecond
	s.core.Engine.Objects.Mu.Lock()
	_, err = s.ServerInfo(context.Background())
	s.core.Engine.Objects.Mu.Unlock()
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, s.Close())
}
