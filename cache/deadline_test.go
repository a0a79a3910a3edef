package cache

import (
	"context"
	"fmt"
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

// passing is a load that passes its deadline to an operation that fails when it expires.
func passing(inner context.Context) (*resource, error) {
	at, limited := inner.Deadline()
	if !limited {
		return &resource{}, nil
	}
	time.Sleep(time.Until(at))
	return nil, fmt.Errorf("nested: %w", context.DeadlineExceeded)
}

func TestWhoWaitsLongerThanTheBuildWasToldStartsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		longer, cancelLonger := context.WithTimeout(ctx, 2*time.Minute)
		defer cancelLonger()
		first := getting(short, c, "a", passing)
		synctest.Wait()
		time.Sleep(30 * time.Second)
		var patient []chan outcome
		for range 3 {
			patient = append(patient, getting(ctx, c, "a", passing))
		}
		second := getting(longer, c, "a", passing)
		synctest.Wait()
		require.EqualValues(t, 4, c.Stats().Joins)
		require.ErrorIs(t, (<-first).err, context.DeadlineExceeded)
		var value *resource
		for _, waiting := range patient {
			o := <-waiting
			require.NoError(t, o.err)
			require.True(t, value == nil || value == o.ref.Value(), "they share that too")
			value = o.ref.Value()
			require.NoError(t, o.ref.Close())
		}
		if o := <-second; o.err == nil { // it came before the waiters without a deadline, or its own deadline was reported
			require.NoError(t, o.ref.Close())
		}
		require.LessOrEqual(t, c.Stats().Misses, uint64(3))
	})
}

func TestABuildThatFailsBeforeItsDeadlineFailsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		first := getting(short, c, "a", func(inner context.Context) (*resource, error) {
			inner.Deadline()
			time.Sleep(30 * time.Second)
			return nil, context.DeadlineExceeded // of another operation
		})
		synctest.Wait()
		joiner := getting(ctx, c, "a", unexpected)
		require.ErrorIs(t, (<-first).err, context.DeadlineExceeded)
		require.ErrorIs(t, (<-joiner).err, context.DeadlineExceeded)

		again := getting(short, c, "c", func(inner context.Context) (*resource, error) {
			_, err := passing(inner)
			return nil, Final(err)
		})
		synctest.Wait()
		joiner = getting(ctx, c, "c", unexpected)
		require.ErrorIs(t, (<-again).err, context.DeadlineExceeded)
		require.EqualError(t, (<-joiner).err, "nested: context deadline exceeded", "its own limit")

		short, cancelNext := context.WithTimeout(ctx, time.Minute)
		defer cancelNext()
		other := getting(short, c, "b", func(context.Context) (*resource, error) { // no deadline was reported
			time.Sleep(time.Minute)
			return nil, context.DeadlineExceeded
		})
		synctest.Wait()
		joiner = getting(ctx, c, "b", unexpected)
		require.ErrorIs(t, (<-other).err, context.DeadlineExceeded)
		require.ErrorIs(t, (<-joiner).err, context.DeadlineExceeded)
	})
}

// When one of two waiters with the same deadline leaves, the deadline remains.
func TestTwoWaitersWithOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		at := time.Now().Add(2 * time.Minute)
		until := func(at time.Time) (context.Context, context.CancelFunc) { return context.WithDeadline(ctx, at) }
		var build context.Context
		g := newGate()
		load := func(inner context.Context) (*resource, error) {
			build = inner
			return g.load(inner)
		}
		short, cancelShort := until(time.Now().Add(time.Minute))
		defer cancelShort()
		one, leave := until(at)
		two, cancelTwo := until(at)
		defer cancelTwo()
		first := getting(short, c, "a", load)
		synctest.Wait() // until it loads, so that the others join it
		second := getting(one, c, "a", unexpected)
		third := getting(two, c, "a", unexpected)
		synctest.Wait()
		leave()
		require.ErrorIs(t, (<-second).err, context.Canceled)
		synctest.Wait()
		got, limited := build.Deadline()
		require.True(t, limited)
		require.Equal(t, at, got)
		require.ErrorIs(t, (<-first).err, context.DeadlineExceeded)
		require.ErrorIs(t, (<-third).err, context.DeadlineExceeded)
	})
}
