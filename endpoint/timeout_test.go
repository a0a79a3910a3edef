package endpoint

import (
	"context"
	"iter"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The run of a cached endpoint has the endpoint's time limit and not the deadline of a caller that left earlier.
func TestTimeoutOfSharedRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		r := NewRegistry()
		require.NoError(t, Register(r, "slow", func(ctx context.Context, _ int) (int, error) {
			at, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, 10*time.Minute, time.Until(at))
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}, Cached(), Timeout(10*time.Minute)))
		s, err := newServer(ServerOptions{Registry: r})
		require.NoError(t, err)
		start := time.Now()
		short, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- s.Call(short, "slow", 1, nil) }()
		synctest.Wait()
		go func() { second <- s.Call(ctx, "slow", 1, nil) }()
		require.ErrorIs(t, <-first, context.DeadlineExceeded)
		require.Equal(t, 5*time.Minute, time.Since(start))
		require.ErrorIs(t, <-second, context.DeadlineExceeded)
		require.Equal(t, 10*time.Minute, time.Since(start), "the limit is the endpoint's")
		require.NoError(t, s.Close())
	})
}

// The time limit of an endpoint ends a stream whose reader has stopped reading, and one that still has credit.
func TestTimeoutBoundsStream(t *testing.T) {
	t.Parallel()
	const limit = 10 * time.Second
	for name, pause := range map[string]time.Duration{"without credit": 0, "with credit": limit + time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := NewRegistry()
				start := time.Now()
				var ended atomic.Int64 // a duration; 0 while the function runs
				require.NoError(t, RegisterStream(r, "items", func(_ context.Context, n int) iter.Seq2[int, error] {
					return func(yield func(int, error) bool) {
						defer func() { ended.Store(int64(time.Since(start))) }()
						for i := range n {
							if !yield(i, nil) {
								return
							}
							time.Sleep(pause)
						}
					}
				}, Timeout(limit)))
				s, err := newServer(ServerOptions{Registry: r, Logger: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				var last error
				for _, err := range Stream[int](t.Context(), s, "items", 1000) {
					if last = err; err == nil && ended.Load() == 0 {
						time.Sleep(2 * limit) // the reader is busy
					}
				}
				require.ErrorIs(t, last, context.DeadlineExceeded)
				require.Equal(t, max(limit, pause), time.Duration(ended.Load()))
				require.NoError(t, s.Close())
			})
		})
	}
}
