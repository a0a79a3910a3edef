package session

import (
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
		before := runtime.NumGoroutine()
		for range 10 {
			ran := 0
			r.run(runFunc(func() { ran++ }))
			synctest.Wait()
			require.Equal(t, 1, ran)
			require.Equal(t, 1, r.waiting(), "the one that ran before")
		}
		require.Equal(t, before+1, runtime.NumGoroutine())
		r.runMany(idleRunners + 10)
		require.Equal(t, idleRunners, r.waiting())
	})
}

func TestRunnersThatAreNotNeededEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r runners
		before := runtime.NumGoroutine()
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
		require.Equal(t, before, runtime.NumGoroutine())
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
		before := runtime.NumGoroutine()
		r.runMany(3)
		hold := make(chan struct{})
		r.run(runFunc(func() { <-hold }))
		r.close()
		synctest.Wait()
		require.Equal(t, before+1, runtime.NumGoroutine(), "one still runs")
		close(hold)
		synctest.Wait()
		require.Equal(t, before, runtime.NumGoroutine())
	})
}
