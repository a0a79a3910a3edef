//go:build linux

package gpu_test

import (
	"errors"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// errUnknown reports a request that is not defined.
var errUnknown = errors.New("unknown request")

// useEvents handles requests for interprocess events.
func (a *agent) useEvents(q request) (r response, err error) {
	switch q.Do {
	case "event":
		var e *cuda.Event
		if e, err = a.dev.NewEvent(cuda.EventOptions{Interprocess: true}); err != nil {
			return r, err
		}
		a.events[q.Key] = e
		var h [64]byte
		h, err = e.IPCHandle()
		r.Blob = h[:]
	case "record": // after work that is still queued
		var s *cuda.Stream
		if s, err = a.dev.NewStream(cuda.StreamOptions{}); err != nil {
			return r, err
		}
		if err = s.Fill8(a.memories[q.Key], 0, a.memories[q.Key].Bytes(), q.Seed); err == nil {
			err = a.events[q.Key].Record(s)
		}
		err = errors.Join(err, s.Close())
	case "open event":
		var e *cuda.Event
		if e, err = a.dev.OpenEvent([64]byte(q.Blob)); err != nil {
			return r, err
		}
		a.events[q.Key] = e
	case "wait event":
		err = a.events[q.Key].Synchronize()
	case "close event":
		err = a.events[q.Key].Close()
	}
	return r, err
}

// importFromPool imports a pool and memory of it. The pool stays open until the process ends.
func (a *agent) importFromPool(f *os.File, handle [64]byte) (*cuda.Memory, error) {
	if f == nil {
		return nil, errors.New("the request has no descriptor")
	}
	pool, err := a.dev.ImportPool(f)
	if err != nil {
		return nil, err
	}
	return pool.ImportMemory(handle)
}

// write tries to write the first bytes of m in the given way, without the checks of package cuda, and returns the
// driver's result after the write completes.
func (a *agent) write(way string, m *cuda.Memory) error {
	switch way {
	case "kernel":
		mod, err := a.dev.LoadModule([]byte(kernelsPTX))
		if err != nil {
			return err
		}
		f, err := mod.Function("fill")
		if err != nil {
			return err
		}
		err = f.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 32}}, m.Pointer(), uint32(0xdeadbeef), uint32(32))
		return errors.Join(err, a.dev.Synchronize())
	case "memset":
		return a.call("cuMemsetD8", func() cu.Result { return cu.MemsetD8(m.Pointer(), 0xee, 128) })
	case "copy":
		data := make([]byte, 128)
		return a.call("cuMemcpyHtoD", func() cu.Result { return copyToDevice(m.Pointer(), data) })
	}
	return fmt.Errorf("%w: write by %s", errUnknown, way)
}

// call calls a function of package cu and then waits for the device.
func (a *agent) call(name string, fn func() cu.Result) error {
	err := a.dev.Do(func() error {
		if r := fn(); r != cu.SUCCESS {
			return &cuda.Error{Func: name, Code: r}
		}
		return nil
	})
	return errors.Join(err, a.dev.Synchronize())
}
