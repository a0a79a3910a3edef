package cuda

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Graph is work that was recorded instead of executed. The objects that it uses must stay open while it is launched.
type Graph struct {
	resource
	dev    *Device
	handle cu.Graph
	used   []*lifetime // objects that the work uses
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
func (s *Stream) Capture(record func() error) (_ *Graph, err error) {
	// The capture mode applies to this thread only, so other goroutines may allocate meanwhile. The thread that begins
	// a capture must end it, with the context current.
	if err := s.p.enter(); err != nil {
		return nil, s.dev.opError("capture", err)
	}
	defer leave()
	r := recordings.start()
	defer recordings.stop(r)
	if err := s.beginCapture(); err != nil {
		return nil, s.dev.opError("capture", err)
	}
	g := &Graph{dev: s.dev}
	ended := false
	end := func() error {
		ended = true
		// The stream cannot be destroyed while it captures, so it needs no use count.
		return check("cuStreamEndCapture", cu.StreamEndCapture(s.handle, &g.handle))
	}
	defer func() {
		if !ended && end() == nil { // record panicked
			cu.GraphDestroy(g.handle)
		}
	}()
	err = record()
	if endErr := end(); endErr != nil {
		return nil, s.dev.opError("capture", joinErrors([]error{err, endErr}))
	}
	h := g.handle
	destroy := func() error { return check("cuGraphDestroy", cu.GraphDestroy(h)) }
	if err != nil {
		return nil, s.dev.opError("capture", errors.Join(err, destroy()))
	}
	if err := g.own(s.p, "graph", 0, destroy); err != nil {
		return nil, s.dev.opError("capture", err)
	}
	g.used = recordings.used(r)
	return g, nil
}

func (s *Stream) beginCapture() error {
	return s.call(func() error {
		defer s.track.lockCapture()()
		return check("cuStreamBeginCapture", cu.StreamBeginCapture(s.handle, cu.STREAM_CAPTURE_MODE_THREAD_LOCAL))
	})
}

// recordings are the captures in progress. An object that is used in one of them counts as used by all. A release may
// therefore wait longer than necessary, never too short.
var recordings recordingSet

type recordingSet struct {
	// begin is held while a capture begins or spreads to another stream, and while an event is recorded for a whole
	// context. It is locked before the lock of a track.
	begin  sync.Mutex
	active atomic.Int32

	mu  sync.Mutex
	all map[*recording]struct{}
}

// recording collects the objects that a capture uses.
type recording struct{ used map[*lifetime]struct{} }

func (s *recordingSet) start() *recording {
	r := &recording{used: map[*lifetime]struct{}{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*recording]struct{}{}
	}
	s.all[r] = struct{}{}
	s.active.Add(1)
	return r
}

func (s *recordingSet) stop(r *recording) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, r)
	s.active.Add(-1)
}

func (s *recordingSet) add(l *lifetime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.all {
		r.used[l] = struct{}{}
	}
}

func (s *recordingSet) used(r *recording) []*lifetime {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(r.used))
}

// lockCapture keeps releases from recording an event while the stream begins to capture.
func (t *track) lockCapture() (unlock func()) {
	recordings.begin.Lock()
	t.mu.Lock()
	return func() {
		t.mu.Unlock()
		recordings.begin.Unlock()
	}
}

// Nodes returns the number of nodes of the graph.
func (g *Graph) Nodes() (int, error) {
	var n uint64
	err := g.call(func() error { return check("cuGraphGetNodes", cu.GraphGetNodes(g.handle, nil, &n)) })
	return int(n), g.dev.opError("graph nodes", err)
}

// Instantiate returns an executable form of the graph, which the caller owns. It does not depend on the graph, which
// may be closed.
func (g *Graph) Instantiate() (*GraphExec, error) {
	x := &GraphExec{dev: g.dev, used: g.used}
	err := g.call(func() error {
		make := func() error { return check("cuGraphInstantiate", cu.GraphInstantiate(&x.handle, g.handle, 0)) }
		return create(&x.resource, g.dev, "instantiated graph", 0, &x.handle, make, "cuGraphExecDestroy", cu.GraphExecDestroy)
	})
	if err != nil {
		return nil, g.dev.opError("instantiate graph", err)
	}
	return x, nil
}

// Close destroys the graph. A second Close returns nil.
func (g *Graph) Close() error { return g.dev.opError("close graph", g.close()) }

// GraphExec is a graph that can be launched repeatedly.
type GraphExec struct {
	resource
	dev    *Device
	handle cu.GraphExec
	used   []*lifetime
}

// Launch queues the graph's work in the stream. Closing an object that the work uses waits for the work.
func (x *GraphExec) Launch(s *Stream) error {
	for _, l := range x.used {
		if l.use() == nil { // a Close that begins later waits for this launch
			defer l.done()
		}
	}
	return x.dev.opError("launch graph", s.queue([]*resource{&x.resource}, func() error {
		err := check("cuGraphLaunch", cu.GraphLaunch(x.handle, s.handle))
		for _, l := range x.used {
			s.track.mark(l)
		}
		return err
	}))
}

// Close waits for the launches and destroys the graph. If a capture forbids the wait, the graph is destroyed after it.
// A second Close returns nil.
func (x *GraphExec) Close() error { return x.dev.opError("close graph", x.close()) }
