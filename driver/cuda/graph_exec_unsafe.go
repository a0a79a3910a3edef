package cuda

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// GraphExec is a graph that can be launched repeatedly. Its launches are executed one after the other, also in different
// streams.
type GraphExec struct {
	resource
	dev    *Device
	handle cu.GraphExec

	mu       sync.Mutex
	uses     graphUses
	launched []*lifetime // uses.all(), or nil after a change
}

// objects returns the objects that a launch uses. The caller does not change the result.
func (x *GraphExec) objects() []*lifetime {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.launched == nil {
		x.launched = x.uses.all()
	}
	return x.launched
}

// Launch queues the graph's work in the stream. Closing an object that the work uses waits for the work. It fails with
// [os.ErrClosed] if an object of a node that is not disabled is closed.
func (x *GraphExec) Launch(s *Stream) error {
	used := x.objects()
	done, err := useAll(used) // a Close that begins later waits for this launch
	if err != nil {
		return x.dev.opError("launch graph", err)
	}
	defer done()
	return x.dev.opError("launch graph", s.queue([]*resource{&x.resource}, func(c cu.Context) error {
		err := check("cuGraphLaunch", c.GraphLaunch(x.handle, s.handle))
		for _, l := range used {
			s.track.mark(l)
		}
		return err
	}))
}

// Upload prepares the graph on the device in the stream, so that the first launch is as fast as others. It needs CUDA
// 11.1.
func (x *GraphExec) Upload(s *Stream) error {
	return x.dev.opError("upload graph", s.queue([]*resource{&x.resource}, func(c cu.Context) error {
		return check("cuGraphUpload", c.GraphUpload(x.handle, s.handle))
	}))
}

// UpdateError reports why [GraphExec.Update] failed. The executable graph is unchanged.
type UpdateError struct {
	// Reason is the driver's reason.
	Reason cu.GraphExecUpdateResult
	// Node is the node of the new graph that differs. Its zero value means the graph as a whole.
	Node Node
	// Err is the error of the driver.
	Err error
}

// updateReasons describes the reasons in a few words.
var updateReasons = map[cu.GraphExecUpdateResult]string{
	cu.GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED:            "the nodes or their order differ",
	cu.GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED:           "a node is of another kind",
	cu.GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED:            "a kernel differs",
	cu.GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED:          "parameters differ that cannot be updated",
	cu.GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED:               "a node cannot be updated",
	cu.GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE: "a kernel differs in a way that cannot be updated",
	cu.GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED:          "attributes differ that cannot be updated",
}

// Error returns the reason and the driver's error.
func (e *UpdateError) Error() string {
	reason := updateReasons[e.Reason]
	if reason == "" {
		reason = fmt.Sprintf("reason %d", e.Reason)
	}
	return fmt.Sprintf("%s: %v: instantiate the graph instead", reason, e.Err)
}

// Unwrap returns the driver's error.
func (e *UpdateError) Unwrap() error { return e.Err }

// Update replaces the parameters of all nodes by those of g, which must have the same nodes in the same order. Launches
// in progress are not affected. Objects that only the replaced parameters use may be closed. It fails with an [*UpdateError] if the graphs differ too much. It needs CUDA 10.2.
func (x *GraphExec) Update(g *Graph) error {
	root := g.root()
	root.mu.Lock()
	uses := root.uses.clone()
	root.mu.Unlock()
	return x.dev.opError("update graph", withAll([]*resource{&root.resource, &x.resource}, func() error {
		x.mu.Lock()
		defer x.mu.Unlock()
		info := new(cu.GraphExecUpdateResultInfo)
		r := x.p.ctx.GraphExecUpdate(x.handle, g.handle, info)
		if r.Missing() {
			r = x.p.ctx.GraphExecUpdate_v1(x.handle, g.handle, &info.ErrorNode, &info.Result)
		}
		err := check("cuGraphExecUpdate", r)
		if r == cu.ERROR_GRAPH_EXEC_UPDATE_FAILURE {
			update := &UpdateError{Reason: info.Result, Err: err}
			if info.ErrorNode != 0 {
				update.Node = Node{g, info.ErrorNode}
			}
			return update
		}
		if err == nil {
			// The streams of earlier launches have recorded the objects of the replaced nodes.
			x.uses, x.launched = uses, nil
		}
		return err
	}))
}

// SetKernel replaces the kernel, dimensions and arguments of a kernel node in later launches. The node is one of the
// graph that x was made from, which must not be closed. The kernel must be of the same context. It borrows memory among
// the arguments until they are replaced. It needs CUDA 12.0.
func (x *GraphExec) SetKernel(n Node, f *Function, cfg LaunchConfig, args ...any) error {
	if n.g == nil {
		return x.dev.opError("set kernel", invalid("no node"))
	}
	a, err := f.pack(args)
	if err != nil {
		return x.dev.opError("set kernel", err)
	}
	p, attrs, err := f.nodeParams(&cfg, unsafe.SliceData(a.pointers()))
	if err == nil && len(attrs) > 0 {
		err = invalid("attributes of a node cannot be set in an executable graph")
	}
	if err != nil {
		return x.dev.opError("set kernel", err)
	}
	used := append(a.used, f.mod)
	all := append(slices.Clip(used), &x.resource, &n.g.root().resource)
	number := n.number()
	return x.dev.opError("set kernel", withAll(all, func() error {
		x.mu.Lock()
		defer x.mu.Unlock()
		err := check("cuGraphExecKernelNodeSetParams", x.p.ctx.GraphExecKernelNodeSetParams(x.handle, n.handle, p))
		if err == nil {
			x.uses.set(number, lives(used))
			x.launched = nil
		}
		return err
	}))
}

// SetEnabled disables or enables a kernel, copy or fill in later launches. The node is one of the graph that x was made
// from, which must not be closed. A disabled node does nothing, so the objects that only it uses may be closed. It needs CUDA 11.6.
func (x *GraphExec) SetEnabled(n Node, enabled bool) error {
	if n.g == nil {
		return x.dev.opError("enable node", invalid("no node"))
	}
	on := uint32(0)
	if enabled {
		on = 1
	}
	number := n.number()
	return x.dev.opError("enable node", n.g.with(func(cu.Context) error {
		return x.call(func(c cu.Context) error {
			x.mu.Lock()
			defer x.mu.Unlock()
			err := check("cuGraphNodeSetEnabled", c.GraphNodeSetEnabled(x.handle, n.handle, on))
			if err == nil {
				x.uses.enable(number, enabled)
				x.launched = nil
			}
			return err
		})
	}))
}

// Close waits for the launches and destroys the graph. If a capture forbids the wait, the graph is destroyed after it.
// A second Close returns nil.
func (x *GraphExec) Close() error { return x.dev.opError("close graph", x.close()) }
