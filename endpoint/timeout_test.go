package endpoint

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeoutWithMovingDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		r := NewRegistry()
		var left []time.Duration
		require.NoError(t, Register(r, "slow", func(ctx context.Context, _ int) (int, error) {
			for range 2 {
				at, ok := ctx.Deadline()
				require.True(t, ok)
				left = append(left, time.Until(at))
				time.Sleep(time.Minute)
			}
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}, Cached(), Timeout(10*time.Minute)))
		s, err := newOwner(ServerOptions{Registry: r})
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
		err = <-second
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []time.Duration{5 * time.Minute, 9 * time.Minute}, left[:2])
		require.Equal(t, 10*time.Minute, time.Since(start), "the limit is the endpoint's, nobody tries again")
		require.NoError(t, s.Close())
	})
}
