package connector

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

func TestReconnectWhileServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inFlight, most, ended atomic.Int64
		jobs := make([]func(context.Context) error, 20*resumeAtOnce)
		for i := range jobs {
			jobs[i] = func(ctx context.Context) error {
				most.Store(max(most.Load(), inFlight.Add(1)))
				defer inFlight.Add(-1)
				time.Sleep(resumeSilence / 2)
				ended.Add(1)
				return ctx.Err()
			}
		}
		start := time.Now()
		require.NoError(t, allWhileAnswered(context.Background(), jobs))
		require.Equal(t, 10*resumeSilence, time.Since(start))
		require.EqualValues(t, len(jobs), ended.Load())
		require.EqualValues(t, resumeAtOnce, most.Load())
	})
}

func TestReconnectSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
		quick := func(context.Context) error { time.Sleep(time.Second); return nil }
		start := time.Now()
		err := allWhileAnswered(context.Background(), []func(context.Context) error{quick, silent, quick, silent})
		require.ErrorIs(t, err, errUnresponsive)
		require.ErrorIs(t, err, status.ErrUnavailable)
		require.Equal(t, resumeSilence+time.Second, time.Since(start))

		broken := errors.New("broken")
		fail := func(context.Context) error { return broken }
		require.ErrorIs(t, allWhileAnswered(context.Background(), []func(context.Context) error{silent, fail, silent}), broken)
		require.NoError(t, allWhileAnswered(context.Background(), nil))
	})
}
