package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// After a panic in Cost the process continues, the result is released, and the worker runs the next task.
func TestPanicInCostFailsTheTask(t *testing.T) {
	panics := true
	m := newManager(t, Options[*resource]{Workers: 1, Cost: func(*resource) int64 {
		if panics {
			panic("no size")
		}
		return 7
	}})
	r := newResource()
	job := submit(t, m, give(r))
	err := job.Wait(ctx)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, err, ErrPanic)
	require.ErrorContains(t, err, "no size")
	_, err = job.Result()
	require.ErrorIs(t, err, ErrFailed)
	require.Eventually(t, func() bool { return r.refs.Load() == 0 }, 30*time.Second, time.Millisecond, "the result is released")
	require.EqualValues(t, 1, m.Stats().Failed)

	panics = false
	run(t, m)
	require.EqualValues(t, 1, m.Stats().Succeeded)
}
