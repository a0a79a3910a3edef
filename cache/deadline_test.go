package cache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBuildHasTheLatestDeadlineOfThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		start := time.Now()
		until := func(d time.Duration) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
		var build context.Context
		g := newGate()
		load := func(inner context.Context) (*resource, error) {
			build = inner
			return g.load(inner)
		}
		deadline := func() time.Duration {
			synctest.Wait()
			if at, limited := build.Deadline(); limited {
				return at.Sub(start)
			}
			return -1
		}
		one, cancelOne := until(time.Minute)
		defer cancelOne()
		first := getting(one, c, "a", load)
		require.Equal(t, time.Minute, deadline())
		three, cancelThree := until(3 * time.Minute)
		defer cancelThree()
		third := getting(three, c, "a", unexpected)
		require.Equal(t, 3*time.Minute, deadline())
		two, cancelTwo := until(2 * time.Minute)
		second := getting(two, c, "a", unexpected)
		require.Equal(t, 3*time.Minute, deadline(), "an earlier one changes nothing")
		endless, leave := context.WithCancel(ctx)
		last := getting(endless, c, "a", unexpected)
		require.Equal(t, time.Duration(-1), deadline(), "one waits for ever")
		leave()
		require.ErrorIs(t, (<-last).err, context.Canceled)
		require.Equal(t, 3*time.Minute, deadline())
		cancelTwo()
		<-second
		require.Equal(t, 3*time.Minute, deadline())

		require.ErrorIs(t, (<-first).err, context.DeadlineExceeded)
		require.NoError(t, build.Err(), "one still waits")
		require.ErrorIs(t, (<-third).err, context.DeadlineExceeded)
		synctest.Wait()
		require.Equal(t, 3*time.Minute, time.Since(start))
		require.Error(t, build.Err())
		require.ErrorIs(t, g.cause, ErrAbandoned)
		require.ErrorIs(t, g.cause, context.DeadlineExceeded, "and why nobody waits")
		require.Equal(t, 3*time.Minute, deadline())
	})
}

func TestDeadlineOfABuildHoldsBelowIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		ref, err := c.Get(limited, key("a"), func(inner context.Context) (*resource, error) {
			below, cancel := context.WithTimeout(inner, time.Hour)
			defer cancel()
			want, _ := limited.Deadline()
			at, ok := below.Deadline()
			require.True(t, ok)
			require.Equal(t, want, at)
			return &resource{}, nil
		})
		require.NoError(t, err)
		require.NoError(t, ref.Close())
	})
}

func TestBuildMayAskForOthers(t *testing.T) {
	c := newCache(t, Options[*resource]{})
	limited, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	ref, err := c.Get(limited, key("a"), func(outer context.Context) (*resource, error) {
		ref, err := c.Get(outer, key("b"), func(inner context.Context) (*resource, error) {
			want, _ := limited.Deadline()
			at, ok := inner.Deadline()
			require.True(t, ok)
			require.Equal(t, want, at)
			return &resource{}, nil
		})
		require.NoError(t, err)
		return &resource{}, ref.Close()
	})
	require.NoError(t, err)
	require.NoError(t, ref.Close())
}
