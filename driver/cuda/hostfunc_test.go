package cuda_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// hostCallsEnd fails the test if the driver still refers to Go functions that the test has queued.
func hostCallsEnd(t *testing.T) {
	t.Helper()
	before := cuda.HostCalls()
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return cuda.HostCalls() == before }, 5*time.Second, time.Millisecond)
	})
}

func TestLaunchHost(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	s, h, m := newStream(t, d), host(t, d, 4), alloc(t, d, 4)
	require.NoError(t, s.Fill8(m, 0, 4, 7))
	require.NoError(t, s.CopyToHost(h, 0, m, 0, 4))
	var seen byte
	var inside cu.Result
	require.NoError(t, s.LaunchHost(func() {
		seen = h.Data()[3]
		inside = cu.StreamQuery(0)
		h.Data()[0] = 9
	}))
	require.NoError(t, s.CopyToDevice(m, 0, h, 0, 4))
	require.NoError(t, s.Synchronize())
	require.EqualValues(t, 7, seen, "earlier work was done")
	require.Equal(t, cu.ERROR_NOT_PERMITTED, inside, "a host function must not call CUDA")
	got := make([]byte, 4)
	_, err := m.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, []byte{9, 7, 7, 7}, got, "later work waited")
	require.ErrorIs(t, s.LaunchHost(nil), driver.ErrInvalid)

	startFake(t).FailFunction("cuLaunchHostFunc", 1, cu.ERROR_OUT_OF_MEMORY)
	require.ErrorIs(t, s.LaunchHost(func() {}), driver.ErrOutOfMemory)
}

// Many host functions need no more than the two callbacks that a process can spare.
func TestLaunchHostManyTimes(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	s := newStream(t, d)
	var n atomic.Int64
	for range 2500 { // a process can make 2000 callbacks
		require.NoError(t, s.LaunchHost(func() { n.Add(1) }))
	}
	require.NoError(t, s.Synchronize())
	require.EqualValues(t, 2500, n.Load())
}

// A captured function is called at each launch, and kept until the last graph is closed.
func TestLaunchHostInGraph(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	before := cuda.HostCalls()
	s := newStream(t, d)
	var n atomic.Int64
	g, err := s.Capture(func() error { return s.LaunchHost(func() { n.Add(1) }) })
	require.NoError(t, err)
	x, err := g.Instantiate()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	for range 3 {
		require.NoError(t, x.Launch(s))
	}
	require.NoError(t, s.Synchronize())
	require.EqualValues(t, 3, n.Load())
	require.Equal(t, before+1, cuda.HostCalls())
	require.NoError(t, x.Close())

	broken := errors.New("broken")
	_, err = s.Capture(func() error { return errors.Join(s.LaunchHost(func() {}), broken) })
	require.ErrorIs(t, err, broken)
	startFake(t).FailFunction("cuGraphRetainUserObject", 1, cu.ERROR_OUT_OF_MEMORY)
	_, err = s.Capture(func() error { return s.LaunchHost(func() {}) })
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
}

func TestGraphRetain(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	s, m := newStream(t, d), alloc(t, d, 4)
	g, err := s.Capture(func() error { return s.Fill8(m, 0, 4, 1) })
	require.NoError(t, err)
	released := make(chan struct{})
	require.NoError(t, g.Retain(func() { close(released) }))
	require.ErrorIs(t, g.Retain(nil), driver.ErrInvalid)
	x, err := g.Instantiate()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	select {
	case <-released:
		t.Fatal("released while an executable graph needs it")
	case <-time.After(5 * time.Millisecond):
	}
	require.NoError(t, x.Close())
	<-released
}

func TestWaitContext(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	s, m := newStream(t, d), alloc(t, d, 8)
	require.NoError(t, s.Fill8(m, 0, 4, 1))
	require.NoError(t, s.WaitContext(t.Context()))
	require.Eventually(t, func() bool { // the function that wakes the caller is still in the stream for a moment
		idle, err := s.Idle()
		return err == nil && idle
	}, 10*time.Second, time.Millisecond)

	// The stream waits for a value that arrives after the caller has left.
	require.NoError(t, m.Fill(0, 8, 0))
	require.NoError(t, s.WaitValue64(m, 0, 1))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.WaitContext(ctx), context.DeadlineExceeded)
	require.ErrorIs(t, s.WaitContext(ctx), context.DeadlineExceeded, "a context that has ended")
	other := newStream(t, d)
	require.NoError(t, other.WriteValue64(m, 0, 1))
	require.NoError(t, s.WaitContext(t.Context()))

	g, err := s.Capture(func() error {
		require.ErrorIs(t, s.WaitContext(t.Context()), cuda.ErrCapturing)
		return s.Fill8(m, 0, 1, 1)
	})
	keep(t, g, err) // the refused wait does not disturb the capture
	closed := newStream(t, d)
	require.NoError(t, closed.Close())
	require.ErrorIs(t, closed.WaitContext(t.Context()), os.ErrClosed)
}

// After a fault the driver calls no host functions. WaitContext reports the fault, and nothing is kept.
func TestWaitContextReportsFaults(t *testing.T) {
	if child(t, "waitfault") {
		return
	}
	startFake(t)
	d, err := cuda.Open(1)
	require.NoError(t, err)
	s := newStream(t, d)
	mod, err := d.LoadModule([]byte(".version 7.0\n.target sm_50\n.visible .entry trap() { ret; }\n"))
	require.NoError(t, err)
	gate := make(chan struct{})
	require.NoError(t, s.LaunchHost(func() { <-gate })) // the fault comes after the next function is queued
	require.NoError(t, function(t, mod, "trap").Launch(cuda.LaunchConfig{Stream: s}))
	require.NoError(t, s.LaunchHost(func() { t.Error("called after a fault") }))
	close(gate)
	require.ErrorIs(t, s.WaitContext(t.Context()), cuda.ErrFault)
	require.Equal(t, 1, cuda.HostCalls())
	require.NoError(t, s.Close())
	require.Zero(t, cuda.HostCalls(), "Close drops the function that is never called")
	require.NoError(t, mod.Close())
	require.NoError(t, d.Close())
}
