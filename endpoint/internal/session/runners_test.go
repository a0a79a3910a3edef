package session

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type runFunc func()

func (f runFunc) runAsync() { f() }

func (r *runners) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.idle)
}

// loops counts the runner goroutines. Tests that use it must not run in parallel.
func loops() int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(".(*runners).loop("))
}

// runMany executes n requests at the same time and returns when all runners are idle.
func (r *runners) runMany(n int) {
	hold := make(chan struct{})
	for range n {
		r.run(runFunc(func() { <-hold }))
	}
	synctest.Wait()
	close(hold)
	synctest.Wait()
}

func TestRunnersReused(t *testing.T) {
	require.Eventually(t, func() bool { return loops() == 0 }, time.Minute, time.Millisecond, "runners of earlier tests end")
	synctest.Test(t, func(t *testing.T) {
		var r runners
		defer r.close()
		for range 10 {
			ran := 0
			r.run(runFunc(func() { ran++ }))
			synctest.Wait()
			require.Equal(t, 1, ran)
			require.Equal(t, 1, r.waiting(), "the first runner is reused")
		}
		require.Equal(t, 1, loops())
		r.runMany(idleRunners + 10)
		require.Equal(t, idleRunners, r.waiting())
	})
}

func TestUnusedRunnersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r runners
		r.runMany(10)
		for range 5 { // always needs three
			r.runMany(3)
			time.Sleep(runnerTime)
			synctest.Wait()
		}
		require.Equal(t, 3, r.waiting())
		time.Sleep(2 * runnerTime)
		synctest.Wait()
		require.Zero(t, r.waiting())
		require.Zero(t, loops())
		r.runMany(2)
		require.Equal(t, 2, r.waiting(), "later runners are kept")
		r.close()
	})
}

// A runner whose function ends the goroutine is not reused.
func TestRunnerEndedByGoexit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r runners
		r.run(runFunc(runtime.Goexit))
		synctest.Wait()
		require.Zero(t, r.waiting())
		r.runMany(1)
		require.Equal(t, 1, r.waiting())
		r.close()
	})
}

func TestRunnersEndWithServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r runners
		r.runMany(3)
		hold := make(chan struct{})
		r.run(runFunc(func() { <-hold }))
		r.close()
		synctest.Wait()
		require.Equal(t, 1, loops(), "one still runs")
		close(hold)
		synctest.Wait()
		require.Zero(t, loops())
	})
}

// The timer's function may run after the server closed and the runners ended.
func TestRunnersEndWhileTheTimerFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r runners
		r.runMany(3)
		time.Sleep(runnerTime)
		synctest.Wait()
		require.Equal(t, 3, r.waiting(), "the next trim would end them")
		r.close()
		ended := make(chan struct{})
		go func() { r.trim(); close(ended) }()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Fatal("it waits for runners that are not there")
		}
		require.Zero(t, loops())
	})
}
