package cuda

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// hostCalls are the Go functions that queued host functions and user objects will call. A process makes two callbacks
// for the driver in all, because they are never freed; the driver passes the number of the function.
var hostCalls hostCallSet

type hostCallSet struct {
	once sync.Once
	run  cu.HostFn // calls a function and releases a reference, unless a graph holds it
	drop cu.HostFn // releases a graph's reference
	err  error

	mu   sync.Mutex
	last uintptr
	all  map[uintptr]*hostCall
}

// hostCall is a function with the references to it: of its only call, or of the graphs that contain it.
type hostCall struct {
	fn     func()
	refs   int
	graph  bool   // graphs hold it, so calls do not release it
	stream *track // nil for a graph's
}

// callbacks makes the two callbacks.
func (s *hostCallSet) callbacks() error {
	s.once.Do(func() {
		run, err := cu.NewCallback(func(id uintptr) uintptr { s.call(id); return 0 })
		if err == nil {
			var drop uintptr
			drop, err = cu.NewCallback(func(id uintptr) uintptr { s.release(id); return 0 })
			s.drop = cu.HostFn(drop)
		}
		if err != nil {
			s.err = &driver.UnsupportedError{Feature: "Go functions in streams", Reason: err.Error()}
		}
		s.run = cu.HostFn(run)
	})
	return s.err
}

func (s *hostCallSet) add(c hostCall) uintptr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[uintptr]*hostCall{}
	}
	s.last++
	s.all[s.last] = &c
	return s.last
}

// call runs a function on the driver's thread.
func (s *hostCallSet) call(id uintptr) {
	s.mu.Lock()
	c := s.all[id]
	if c != nil && !c.graph {
		delete(s.all, id)
	}
	s.mu.Unlock()
	if c != nil {
		c.fn()
	}
}

// retain makes the function one of a graph, with another reference.
func (s *hostCallSet) retain(id uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[id].graph = true
	s.all[id].refs++
}

// release removes a reference. The last one removes the function, and runs it if it is a destructor.
func (s *hostCallSet) release(id uintptr) {
	s.mu.Lock()
	c := s.all[id]
	destroy := false
	if c != nil {
		if c.refs--; c.refs <= 0 {
			delete(s.all, id)
			destroy = !c.graph
		}
	}
	s.mu.Unlock()
	if destroy {
		c.fn()
	}
}

// remove removes a function that will not be called.
func (s *hostCallSet) remove(id uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// forget removes the functions of a stream that has ended. The driver does not call functions after a fault.
func (s *hostCallSet) forget(t *track) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.all {
		if c.stream == t {
			delete(s.all, id)
		}
	}
}

// LaunchHost queues a call of fn, which runs on a thread of the driver when the work queued before is done. Work that is
// queued later waits for it. fn must not call CUDA, which fails with "not permitted" there, or wait for work on a
// device. fn is not called if earlier work fails. A panic in fn ends the process.
//
// While the stream captures, fn becomes a node of the graph, is called at each launch, and is kept until the graph and
// all executable graphs made from it are closed. It needs CUDA 10.0, or 11.3 in a capture.
func (s *Stream) LaunchHost(fn func()) error {
	if fn == nil {
		return s.dev.opError("launch host function", invalid("no function"))
	}
	return s.dev.opError("launch host function", s.call(func(cu.Context) error {
		if recordings.active.Load() > 0 {
			defer s.track.lockCapture()()
			if capturing, err := s.track.isCapturing(); err != nil {
				return err
			} else if capturing {
				return s.captureHost(fn)
			}
		}
		_, err := s.track.launchHost(fn)
		return err
	}))
}

// launchHost queues a call of fn and returns its number. The stream does not capture.
func (t *track) launchHost(fn func()) (uintptr, error) {
	if err := hostCalls.callbacks(); err != nil {
		return 0, err
	}
	id := hostCalls.add(hostCall{fn: fn, stream: t})
	err := check("cuLaunchHostFunc", t.p.ctx.LaunchHostFunc(t.handle, hostCalls.run, id))
	if err != nil {
		hostCalls.remove(id)
	}
	return id, err
}

// captureHost records a call of fn in the captures in progress.
func (s *Stream) captureHost(fn func()) error {
	if err := hostCalls.callbacks(); err != nil {
		return err
	}
	id := hostCalls.add(hostCall{fn: fn})
	recordings.addHost(id)
	err := check("cuLaunchHostFunc", s.p.ctx.LaunchHostFunc(s.handle, hostCalls.run, id))
	return err // the recording releases the function
}

// Intervals at which WaitContext checks for errors, after which the driver calls no host functions.
const (
	minErrorCheck = 20 * time.Millisecond
	maxErrorCheck = 500 * time.Millisecond
)

// WaitContext returns when all work queued so far is done, and reports errors of that work. Unlike [Stream.Synchronize]
// it occupies no thread while it waits. If ctx ends first, WaitContext returns its cause, and the work continues. It fails
// with [ErrCapturing] while the stream captures. It needs CUDA 10.0.
func (s *Stream) WaitContext(ctx context.Context) error {
	return s.dev.opError("wait for stream", s.waitContext(ctx))
}

func (s *Stream) waitContext(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := s.use(); err != nil {
		return err
	}
	defer s.done()
	done := make(chan struct{})
	last := s.track.issued.Load()
	var id uintptr
	err := s.track.outsideCapture(func() (err error) {
		id, err = s.track.launchHost(func() { close(done) })
		return err
	})
	if err != nil {
		return err
	}
	timer := time.NewTimer(minErrorCheck)
	defer timer.Stop()
	for next := 2 * minErrorCheck; ; next = min(2*next, maxErrorCheck) {
		select {
		case <-done:
			s.track.complete(last)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		if err := s.failed(); err != nil {
			hostCalls.remove(id)
			return err
		}
		timer.Reset(next)
	}
}

// failed returns the error of work in the stream. It returns nil while the work continues or the stream captures.
func (s *Stream) failed() error {
	err := s.p.do(func() error {
		return relaxed(func() error {
			return s.track.outsideCapture(func() error {
				if r := cu.StreamQuery(s.handle); r != cu.ERROR_NOT_READY {
					return check("cuStreamQuery", r)
				}
				return nil
			})
		})
	})
	if errors.Is(err, ErrCapturing) {
		return nil
	}
	return err
}
