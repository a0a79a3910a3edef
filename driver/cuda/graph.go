package cuda

import (
	"errors"
	"runtime"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Graph is work that was recorded instead of done. What it uses has to stay open, and the program has to keep it.
type Graph struct {
	resource
	dev    *Device
	handle cu.Graph
}

// Capture records what record queues in the stream, and in streams that wait for events recorded there, and returns it
// as an owned graph. Nothing of it is done. Calls that wait for the device, such as Synchronize, ReadAt and Close, fail
// while a stream captures and spoil the capture. The error of record is returned, and the capture given up.
func (s *Stream) Capture(record func() error) (_ *Graph, err error) {
	// The mode is for this thread: other goroutines may allocate meanwhile, and the end has to come from where the
	// beginning was.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = s.call(func() error {
		return check("cuStreamBeginCapture", cu.StreamBeginCapture(s.handle, cu.STREAM_CAPTURE_MODE_THREAD_LOCAL))
	})
	if err != nil {
		return nil, s.dev.opError("capture", err)
	}
	g := &Graph{dev: s.dev}
	ended := false
	end := func() error {
		ended = true
		return s.endCapture(&g.handle)
	}
	defer func() {
		if !ended && end() == nil { // record panicked
			_ = s.p.do(func() error { return check("cuGraphDestroy", cu.GraphDestroy(g.handle)) })
		}
	}()
	err = record()
	if endErr := end(); endErr != nil {
		return nil, s.dev.opError("capture", joinErrors([]error{err, endErr}))
	}
	h := g.handle
	destroy := func() error { return check("cuGraphDestroy", cu.GraphDestroy(h)) }
	if err != nil {
		return nil, s.dev.opError("capture", errors.Join(err, s.p.do(destroy)))
	}
	if err := g.own(s.p, "graph", 0, destroy); err != nil {
		return nil, s.dev.opError("capture", err)
	}
	return g, nil
}

// endCapture ends the capture also where the context cannot be made current: it is still current on this thread, to
// which the goroutine is locked, unless record has worked with another device, and a stream must not stay capturing.
func (s *Stream) endCapture(out *cu.Graph) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.done()
	if s.p.enter() == nil {
		defer leave()
	}
	return check("cuStreamEndCapture", cu.StreamEndCapture(s.handle, out))
}

// Nodes is how many pieces of work the graph has.
func (g *Graph) Nodes() (int, error) {
	var n uint64
	err := g.call(func() error { return check("cuGraphGetNodes", cu.GraphGetNodes(g.handle, nil, &n)) })
	return int(n), g.dev.opError("graph nodes", err)
}

// Instantiate returns the graph, owned, in a form that can be launched. It does not need the graph any more.
func (g *Graph) Instantiate() (*GraphExec, error) {
	x := &GraphExec{dev: g.dev}
	err := g.call(func() error {
		if err := check("cuGraphInstantiate", cu.GraphInstantiate(&x.handle, g.handle, 0)); err != nil {
			return err
		}
		h := x.handle
		return x.own(g.p, "instantiated graph", 0, func() error {
			cu.CtxSynchronize() // launches under way; what it reports is theirs
			return check("cuGraphExecDestroy", cu.GraphExecDestroy(h))
		})
	})
	if err != nil {
		return nil, g.dev.opError("instantiate graph", err)
	}
	return x, nil
}

// Close gives the graph back. A second Close is nil.
func (g *Graph) Close() error { return g.dev.opError("close graph", g.close()) }

// GraphExec is a graph that can be launched, again and again.
type GraphExec struct {
	resource
	dev    *Device
	handle cu.GraphExec
}

// Launch queues the graph's work in the stream.
func (x *GraphExec) Launch(s *Stream) error {
	return x.dev.opError("launch graph", s.with(&x.resource, func() error {
		return check("cuGraphLaunch", cu.GraphLaunch(x.handle, s.handle))
	}))
}

// Close waits for all work of the context and gives the graph back. A second Close is nil.
func (x *GraphExec) Close() error { return x.dev.opError("close graph", x.close()) }
