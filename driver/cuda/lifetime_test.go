package cuda

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// closed returns when begin of the lifetime waits for calls, or has succeeded.
func closed(l *lifetime) chan bool {
	done := make(chan bool, 1)
	go func() { done <- l.begin() }()
	for {
		if l.calls.Load() >= closing {
			return done
		}
		runtime.Gosched()
	}
}

// Two calls use two objects in opposite order while each object is being closed. Neither call may block on a closer.
func TestEnterDuringCloseDoesNotBlock(t *testing.T) {
	a, b := newLifetime(), newLifetime()
	require.NoError(t, a.use())
	require.NoError(t, b.use())
	closeA, closeB := closed(a), closed(b)
	require.ErrorIs(t, b.use(), os.ErrClosed, "the call that uses a")
	require.ErrorIs(t, a.use(), os.ErrClosed, "the call that uses b")
	require.Empty(t, closeA)
	require.Empty(t, closeB)
	a.done()
	b.done()
	require.True(t, <-closeA)
	require.True(t, <-closeB)
}

// A second closer waits for the first, and retries if that released nothing.
func TestSecondCloserWaits(t *testing.T) {
	l := newLifetime()
	require.True(t, l.begin())
	second := make(chan bool, 1)
	go func() { second <- l.begin() }()
	l.end(false)
	require.True(t, <-second)
	require.ErrorIs(t, l.use(), os.ErrClosed)
	l.end(true)
	require.False(t, l.begin())
}

// Calls that begin while a closer waits are refused and counted only for a moment. The closer does not miss the end of the
// last one, and a call never runs after begin has returned.
func TestCallsRaceWithClosers(t *testing.T) {
	for range 2000 {
		l := newLifetime()
		var inside atomic.Int64
		var callers sync.WaitGroup
		for range 3 {
			callers.Go(func() {
				for l.use() == nil {
					inside.Add(1)
					inside.Add(-1)
					l.done()
				}
			})
		}
		require.True(t, l.begin())
		require.Zero(t, inside.Load(), "a call is in flight")
		l.end(false)
		require.NoError(t, l.use(), "usable again")
		l.done()
		require.True(t, l.begin())
		l.end(true)
		callers.Wait()
		require.EqualValues(t, closing, l.calls.Load())
	}
}

// A lifetime keeps one entry for each stream, and drops entries of completed work.
func TestMarkKeepsTheLastUseOfEachStream(t *testing.T) {
	l, a, b := newLifetime(), &track{}, &track{}
	l.mark(a, 2)
	l.mark(a, 1)
	last, _ := l.uses()
	require.Equal(t, []lastUse{{a, 2}}, last)
	l.mark(b, 1)
	last, _ = l.uses()
	require.Len(t, last, 2)
	a.complete(2)
	a.complete(1)
	l.mark(&track{}, 1)
	last, _ = l.uses()
	require.Len(t, last, 2)
	require.NotContains(t, last, lastUse{a, 2})
}

// Closing reports whether Close has begun.
func (r *resource) Closing() bool {
	return r.life.calls.Load() >= closing
}
