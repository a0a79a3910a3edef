package cuda

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Graph is work that is recorded instead of executed: nodes, and the order between them. The objects that it uses must
// stay open while it is launched. Make one with [Stream.Capture], or with [Device.NewGraph] and the methods that add
// nodes. Its methods are safe for concurrent use.
type Graph struct {
	resource
	dev    *Device
	handle cu.Graph
	outer  *Graph // of a body of a condition: the graph that owns it

	mu   sync.Mutex
	uses graphUses // objects that the work uses; empty in a body, whose outer graph has them
}

// root returns the graph that owns the resource.
func (g *Graph) root() *Graph {
	if g.outer != nil {
		return g.outer
	}
	return g
}

// with runs fn while the graph cannot be released. fn calls the driver by methods of the context.
func (g *Graph) with(fn func(c cu.Context) error) error { return g.root().call(fn) }

// NewGraph returns an empty graph, which the caller owns.
func (d *Device) NewGraph() (*Graph, error) {
	return made(d, "new graph", func() (*Graph, error) {
		g := &Graph{dev: d}
		make := func(c cu.Context) error { return check("cuGraphCreate", c.GraphCreate(&g.handle, 0)) }
		return g, create(&g.resource, d, "graph", 0, &g.handle, make, "cuGraphDestroy", cu.GraphDestroy)
	})
}

// Capture records the work that record queues in the stream, and in streams that wait for events recorded there. It
// returns the work as a graph, which the caller owns. The work is not executed. If record fails, Capture abandons the
// capture and returns the error.
//
// Calls that wait for the device, such as Synchronize and ReadAt, fail in record and invalidate the capture. Close of
// any object is safe at any time and does not disturb a capture. If a release has to wait for a stream that captures,
// or for a whole context with such a stream, Close returns nil and the release is deferred until the capture ends.
// [Device.Stats] counts these. A stream that captures cannot be closed, and memory in an address range cannot be
// unmapped: they fail with [ErrCapturing].
//
// Captures begun by calls of package cu are detected in streams of this package. Do not close objects whose address was
// exposed while another stream of their device captures.
func (s *Stream) Capture(record func() error) (*Graph, error) {
	begin := func() error {
		return check("cuStreamBeginCapture", cu.StreamBeginCapture(s.handle, cu.STREAM_CAPTURE_MODE_THREAD_LOCAL))
	}
	var g *Graph
	err := s.capture(begin, record, func(h cu.Graph, r *recording, failed bool) error {
		made := &Graph{dev: s.dev, handle: h}
		destroy := func() error { return freed("cuGraphDestroy", cu.GraphDestroy(h)) }
		if err := made.own(s.p, "graph", 0, destroy); err != nil {
			return err
		}
		if failed {
			return made.discard()
		}
		if err := keepHosts(s.p.ctx, h, recordings.takeHosts(r)); err != nil {
			return errors.Join(err, made.discard())
		}
		made.uses.capture(recordings.used(r))
		g = made
		return nil
	})
	if err != nil {
		return nil, s.dev.opError("capture", err)
	}
	return g, nil
}

// CaptureInto records work like [Stream.Capture] and adds it to g, which may be a body of a condition, after the given
// nodes. If record fails, g may contain a part of the work. It needs CUDA 12.3.
func (s *Stream) CaptureInto(g *Graph, after []Node, record func() error) error {
	deps := make([]cu.GraphNode, len(after))
	for i, n := range after {
		if n.g != g {
			return s.dev.opError("capture", invalid("node %d to wait for is not of this graph", i))
		}
		deps[i] = n.handle
	}
	root := g.root()
	if err := root.use(); err != nil {
		return s.dev.opError("capture", err)
	}
	defer root.done()
	begin := func() error {
		return check("cuStreamBeginCaptureToGraph", cu.StreamBeginCaptureToGraph(s.handle, g.handle, unsafe.SliceData(deps), nil, uint64(len(deps)),
			cu.STREAM_CAPTURE_MODE_THREAD_LOCAL))
	}
	return s.dev.opError("capture", s.capture(begin, record, func(_ cu.Graph, r *recording, _ bool) error {
		root.mu.Lock()
		defer root.mu.Unlock()
		root.uses.capture(recordings.used(r))
		return keepHosts(s.p.ctx, root.handle, recordings.takeHosts(r))
	}))
}

// capture begins a capture, runs record and ends the capture. finish receives the graph if there is one, also if record
// has failed.
func (s *Stream) capture(begin, record func() error, finish func(h cu.Graph, r *recording, failed bool) error) error {
	// The capture mode applies to this thread only, so other goroutines may allocate meanwhile. The thread that begins
	// a capture must end it, with the context current.
	if err := s.p.enter(); err != nil {
		return err
	}
	defer leave()
	r := recordings.start()
	defer recordings.stop(r)
	err := s.call(func(cu.Context) error {
		defer s.track.lockCapture()()
		return begin()
	})
	if err != nil {
		return err
	}
	h := new(cu.Graph)
	ended := false
	end := func() error {
		ended = true
		// The stream cannot be destroyed while it captures, so it needs no use count.
		return check("cuStreamEndCapture", cu.StreamEndCapture(s.handle, h))
	}
	defer func() {
		if !ended && end() == nil { // record panicked
			_ = finish(*h, r, true) // best effort: the panic continues
		}
	}()
	err = record()
	if endErr := end(); endErr != nil {
		return joinErrors([]error{err, endErr})
	}
	return errors.Join(err, finish(*h, r, err != nil))
}

// Nodes returns the number of nodes of the graph.
func (g *Graph) Nodes() (int, error) {
	var n uint64
	err := g.with(func(c cu.Context) error { return check("cuGraphGetNodes", c.GraphGetNodes(g.handle, nil, &n)) })
	return int(n), g.dev.opError("graph nodes", err)
}

// Instantiate returns an executable form of the graph, which the caller owns. The graph may be closed, but
// [GraphExec.SetKernel] and [GraphExec.SetEnabled] need its nodes. A body of a condition cannot be instantiated. It needs
// CUDA 11.4.
func (g *Graph) Instantiate() (*GraphExec, error) {
	if g.outer != nil {
		return nil, g.dev.opError("instantiate graph", invalid("the body of a condition"))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	x := &GraphExec{dev: g.dev, uses: g.uses.clone()}
	err := g.call(func(c cu.Context) error {
		make := func(c cu.Context) error {
			return check("cuGraphInstantiate", c.GraphInstantiate(&x.handle, g.handle, 0))
		}
		return create(&x.resource, g.dev, "instantiated graph", 0, &x.handle, make, "cuGraphExecDestroy", cu.GraphExecDestroy)
	})
	if err != nil {
		return nil, g.dev.opError("instantiate graph", err)
	}
	return x, nil
}

// Close destroys the graph. A second Close returns nil, and so does that of a body of a condition.
func (g *Graph) Close() error {
	if g.outer != nil {
		return nil
	}
	return g.dev.opError("close graph", g.close())
}
