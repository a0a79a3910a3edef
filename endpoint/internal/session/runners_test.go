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

func (f runFunc) apart() { f() }

func (r *runners) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.idle)
}

// loops counts the goroutines that are runners. Tests of them do not run beside each other.
func loops() int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(".(*runners).loop("))
}

// runMany runs so many at the same time, and returns when all have run and wait.
func (r *runners) runMany(n int) {
	hold := make(chan struct{})
	for range n {
		r.run(runFunc(func() { <-hold }))
	}
	synctest.Wait()
	close(hold)
	synctest.Wait()
}

func TestRunnersRunWhatComesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r runners
		defer r.close()
		for range 10 {
			ran := 0
			r.run(runFunc(func() { ran++ }))
			synctest.Wait()
			require.Equal(t, 1, ran)
			require.Equal(t, 1, r.waiting(), "the one that ran before")
		}
		require.Equal(t, 1, loops())
		r.runMany(idleRunners + 10)
		require.Equal(t, idleRunners, r.waiting())
	})
}

func TestRunnersThatAreNotNeededEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r runners
		r.runMany(10)
		for range 5 { // three are needed all the time
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
		require.Equal(t, 2, r.waiting(), "there are others later")
		r.close()
	})
}

// A function may end its goroutine; that one is not counted on.
func TestRunnerThatIsEndedByWhatItRuns(t *testing.T) {
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

func TestRunnersEndWithTheirServer(t *testing.T) {
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

// The timer may have fired when the server closes: its function then comes after the runners have ended.
func TestRunnersEndWhileTheTimerFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r runners
		r.runMany(3)
		time.Sleep(runnerTime)
		synctest.Wait()
		require.Equal(t, 3, r.waiting(), "those that the next look would end")
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
