package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Node is a unit of work in a [Graph], which owns it.
type Node struct {
	g      *Graph
	handle cu.GraphNode
}

// NodeKind is the kind of work of a node.
type NodeKind int32

// The kinds of nodes.
const (
	KernelNode    = NodeKind(cu.GRAPH_NODE_TYPE_KERNEL)
	CopyNode      = NodeKind(cu.GRAPH_NODE_TYPE_MEMCPY)
	FillNode      = NodeKind(cu.GRAPH_NODE_TYPE_MEMSET)
	HostNode      = NodeKind(cu.GRAPH_NODE_TYPE_HOST)
	GraphNode     = NodeKind(cu.GRAPH_NODE_TYPE_GRAPH)
	EmptyNode     = NodeKind(cu.GRAPH_NODE_TYPE_EMPTY)
	WaitNode      = NodeKind(cu.GRAPH_NODE_TYPE_WAIT_EVENT)
	RecordNode    = NodeKind(cu.GRAPH_NODE_TYPE_EVENT_RECORD)
	AllocNode     = NodeKind(cu.GRAPH_NODE_TYPE_MEM_ALLOC)
	FreeNode      = NodeKind(cu.GRAPH_NODE_TYPE_MEM_FREE)
	ValueNode     = NodeKind(cu.GRAPH_NODE_TYPE_BATCH_MEM_OP)
	ConditionNode = NodeKind(cu.GRAPH_NODE_TYPE_CONDITIONAL)
)

// String returns the kind in one word.
func (k NodeKind) String() string {
	names := map[NodeKind]string{KernelNode: "kernel", CopyNode: "copy", FillNode: "fill", HostNode: "host", GraphNode: "graph", EmptyNode: "empty",
		WaitNode: "wait", RecordNode: "record", AllocNode: "alloc", FreeNode: "free", ValueNode: "value", ConditionNode: "condition"}
	if name, ok := names[k]; ok {
		return name
	}
	return fmt.Sprintf("kind %d", int32(k))
}

// Kind returns the kind of the node.
func (n Node) Kind() (NodeKind, error) {
	if n.g == nil {
		return 0, invalid("no node")
	}
	var k cu.GraphNodeType
	err := n.g.with(func(c cu.Context) error { return check("cuGraphNodeGetType", c.GraphNodeGetType(n.handle, &k)) })
	return NodeKind(k), n.g.dev.opError("node kind", err)
}

// number returns the number of the node in the graph's uses. n is not the zero Node.
func (n Node) number() int {
	root := n.g.root()
	root.mu.Lock()
	defer root.mu.Unlock()
	if _, ok := root.uses.number[n.handle]; !ok {
		root.uses.add(n.handle, nil)
	}
	return root.uses.number[n.handle]
}

// add calls fn, which adds a node after others of the same graph, and records the objects that the node uses.
func (g *Graph) add(op string, used []*resource, after []Node, fn func(c cu.Context, out, deps *cu.GraphNode, n uint64) error) (Node, error) {
	return g.addUsing(op, used, lives(used), after, fn)
}

// addUsing is add for a node that needs some objects while it is added and uses others when it is launched.
func (g *Graph) addUsing(op string, needed []*resource, used []*lifetime, after []Node, fn func(c cu.Context, out, deps *cu.GraphNode, n uint64) error) (Node, error) {
	root := g.root()
	root.mu.Lock()
	defer root.mu.Unlock()
	deps := make([]cu.GraphNode, len(after))
	for i, n := range after {
		if n.g != g {
			return Node{}, g.dev.opError(op, invalid("node %d to wait for is not of this graph", i))
		}
		deps[i] = n.handle
	}
	out := new(cu.GraphNode)
	err := withAll(needed, func() error {
		return g.with(func(c cu.Context) error {
			err := fn(c, out, unsafe.SliceData(deps), uint64(len(deps)))
			if *out != 0 { // also if a node could not be removed after an error
				root.uses.add(*out, used)
			}
			return err
		})
	})
	if err != nil {
		return Node{}, g.dev.opError(op, err)
	}
	return Node{g, *out}, nil
}

// destroyNode removes a node that was added by an operation that fails. It sets *out to 0 if the node is removed.
func destroyNode(c cu.Context, out *cu.GraphNode) error {
	err := freeNow("cuGraphDestroyNode", func() cu.Result { return c.GraphDestroyNode(*out) })
	if !mustRetry(err) {
		*out = 0
	}
	return err
}

// AddKernel adds a launch of f after other nodes. The arguments are checked and copied like those of [Function.Launch].
// cfg has no stream, and no attributes with events. Memory among the arguments is borrowed, and must stay open while the
// graph is launched; [GraphExec.Launch] makes its Close wait. It needs CUDA 12.0.
func (g *Graph) AddKernel(f *Function, cfg LaunchConfig, after []Node, args ...any) (Node, error) {
	a, err := f.pack(args)
	if err != nil {
		return Node{}, g.dev.opError("add "+f.name, err)
	}
	return f.addTo(g, &cfg, after, append(a.used, f.mod), unsafe.SliceData(a.pointers()))
}

// AddTo adds a launch to the graph after other nodes, like [Graph.AddKernel].
func (k *Kernel[Args]) AddTo(g *Graph, cfg LaunchConfig, args Args, after ...Node) (Node, error) {
	c := k.calls.New().(*kernelCall[Args])
	c.args = args
	if err := k.fill(c); err != nil {
		return Node{}, g.dev.opError("add "+k.f.name, err)
	}
	return k.f.addTo(g, &cfg, after, append(c.list.used, k.f.mod), &c.pointers[0])
}

func (f *Function) addTo(g *Graph, cfg *LaunchConfig, after []Node, used []*resource, pointers *unsafe.Pointer) (Node, error) {
	p, attrs, err := f.nodeParams(cfg, pointers)
	if err != nil {
		return Node{}, g.dev.opError("add "+f.name, err)
	}
	return g.add("add "+f.name, used, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		if err := check("cuGraphAddKernelNode", c.GraphAddKernelNode(out, g.handle, deps, n, p)); err != nil {
			return err
		}
		for i := range attrs {
			err := check("cuGraphKernelNodeSetAttribute", c.GraphKernelNodeSetAttribute(*out, attrs[i].Id, &attrs[i].Value))
			if err != nil {
				return errors.Join(launchError(attrs, err), destroyNode(c, out))
			}
		}
		return nil
	})
}

// nodeParams returns the parameters of a kernel node. The driver copies the arguments.
func (f *Function) nodeParams(cfg *LaunchConfig, pointers *unsafe.Pointer) (*cu.KERNEL_NODE_PARAMS, []cu.LaunchAttribute, error) {
	attrs, events, err := launchOptions(cfg.Attributes)
	switch {
	case err != nil:
		return nil, nil, err
	case cfg.Stream != nil:
		return nil, nil, invalid("a launch in a graph has no stream")
	case len(events) > 0:
		return nil, nil, invalid("a launch in a graph has no attributes with events: add nodes")
	}
	p := &cu.KERNEL_NODE_PARAMS{Func: f.handle, SharedMemBytes: cfg.SharedBytes, KernelParams: pointers, Ctx: f.dev.p.ctx}
	p.GridDimX, p.GridDimY, p.GridDimZ = cfg.Grid.orOne()
	p.BlockDimX, p.BlockDimY, p.BlockDimZ = cfg.Block.orOne()
	return p, attrs, nil
}

// AddBox adds a copy of a box after other nodes. It borrows the memory, like [Graph.AddKernel], and checks it like
// [Stream.CopyBox].
func (g *Graph) AddBox(b BoxCopy, after ...Node) (Node, error) {
	p, used, err := b.params()
	if err == nil && p == nil {
		err = invalid("an empty box")
	}
	if err != nil {
		return Node{}, g.dev.opError("add copy", err)
	}
	return g.add("add copy", used, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		if err := b.reach(g.dev); err != nil {
			return err
		}
		return check("cuGraphAddMemcpyNode", c.GraphAddMemcpyNode(out, g.handle, deps, n, p, g.root().p.ctx))
	})
}

// AddCopy adds a copy of bytes after other nodes, like [Graph.AddBox].
func (g *Graph) AddCopy(c Copy, after ...Node) (Node, error) {
	return g.AddBox(BoxCopy{Dst: Box{Operand: c.Dst}, Src: Box{Operand: c.Src}, Width: c.Bytes, Height: 1}, after...)
}

// AddFill8 adds an operation that sets n bytes at off to value, after other nodes. It borrows m.
func (g *Graph) AddFill8(m *Memory, off, n int64, value uint8, after ...Node) (Node, error) {
	return g.addFill(m, off, n, 1, uint32(value), after)
}

// AddFill16 adds an operation that sets n values of 2 bytes at off, a multiple of 2, after other nodes. It borrows m.
func (g *Graph) AddFill16(m *Memory, off, n int64, value uint16, after ...Node) (Node, error) {
	return g.addFill(m, off, n, 2, uint32(value), after)
}

// AddFill32 adds an operation that sets n values of 4 bytes at off, a multiple of 4, after other nodes. It borrows m.
func (g *Graph) AddFill32(m *Memory, off, n int64, value uint32, after ...Node) (Node, error) {
	return g.addFill(m, off, n, 4, value, after)
}

func (g *Graph) addFill(m *Memory, off, n, width int64, value uint32, after []Node) (Node, error) {
	err := m.fillRange(off, n, width)
	if err == nil && n == 0 {
		err = invalid("a fill of no bytes")
	}
	if err != nil {
		return Node{}, g.dev.opError("add fill", err)
	}
	p := &cu.MEMSET_NODE_PARAMS{Dst: m.ptr + cu.DevicePtr(off), Value: value, ElementSize: uint32(width), Width: uint64(n), Height: 1}
	return g.add("add fill", []*resource{&m.resource}, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		return check("cuGraphAddMemsetNode", c.GraphAddMemsetNode(out, g.handle, deps, n, p, g.root().p.ctx))
	})
}

// AddHost adds a call of fn after other nodes, with the rules of [Stream.LaunchHost]. fn is kept until the graph and all
// executable graphs made from it are closed. It needs CUDA 11.3.
func (g *Graph) AddHost(fn func(), after ...Node) (Node, error) {
	if fn == nil {
		return Node{}, g.dev.opError("add host function", invalid("no function"))
	}
	if err := hostCalls.callbacks(); err != nil {
		return Node{}, g.dev.opError("add host function", err)
	}
	id := hostCalls.add(hostCall{fn: fn})
	hostCalls.retain(id)
	n, err := g.add("add host function", nil, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		p := &cu.HOST_NODE_PARAMS{Fn: hostCalls.run, UserData: id}
		if err := check("cuGraphAddHostNode", c.GraphAddHostNode(out, g.handle, deps, n, p)); err != nil {
			return err
		}
		err := retainUserObject(c, g.root().handle, id)
		if err != nil {
			return errors.Join(err, destroyNode(c, out))
		}
		return nil
	})
	if err != nil {
		hostCalls.release(id)
	}
	return n, err
}

// AddEmpty adds a node without work after other nodes, for others to wait for.
func (g *Graph) AddEmpty(after ...Node) (Node, error) {
	return g.add("add empty node", nil, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		return check("cuGraphAddEmptyNode", c.GraphAddEmptyNode(out, g.handle, deps, n))
	})
}

// AddRecord adds a node that records the event at each launch. It borrows e. It needs CUDA 11.1.
func (g *Graph) AddRecord(e *Event, after ...Node) (Node, error) {
	return g.add("add record", []*resource{&e.resource}, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		return check("cuGraphAddEventRecordNode", c.GraphAddEventRecordNode(out, g.handle, deps, n, e.handle))
	})
}

// AddWait adds a node that waits for the event, as it is recorded at the launch. It borrows e. It needs CUDA 11.1.
func (g *Graph) AddWait(e *Event, after ...Node) (Node, error) {
	return g.add("add wait", []*resource{&e.resource}, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		return check("cuGraphAddEventWaitNode", c.GraphAddEventWaitNode(out, g.handle, deps, n, e.handle))
	})
}

// AddGraph adds the work of another graph as one node. It copies child, which may then change or be closed.
func (g *Graph) AddGraph(child *Graph, after ...Node) (Node, error) {
	if child.root() == g.root() {
		return Node{}, g.dev.opError("add graph", invalid("a graph inside of itself"))
	}
	child.root().mu.Lock()
	inner := child.root().uses.all()
	child.root().mu.Unlock()
	return g.addUsing("add graph", []*resource{&child.root().resource}, inner, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		return check("cuGraphAddChildGraphNode", c.GraphAddChildGraphNode(out, g.handle, deps, n, child.handle))
	})
}

// Dependencies returns the nodes that n waits for.
func (n Node) Dependencies() ([]Node, error) {
	if n.g == nil {
		return nil, invalid("no node")
	}
	var nodes []Node
	err := n.g.with(func(c cu.Context) error {
		var count uint64
		if err := check("cuGraphNodeGetDependencies", dependencies(c, n.handle, nil, &count)); err != nil || count == 0 {
			return err
		}
		handles := make([]cu.GraphNode, count)
		err := check("cuGraphNodeGetDependencies", dependencies(c, n.handle, &handles[0], &count))
		for _, h := range handles {
			nodes = append(nodes, Node{n.g, h})
		}
		return err
	})
	return nodes, n.g.dev.opError("dependencies", err)
}

// dependencies calls the form of the function that the driver has: CUDA 13.0 added the data of edges.
func dependencies(c cu.Context, h cu.GraphNode, out *cu.GraphNode, n *uint64) cu.Result {
	r := c.GraphNodeGetDependencies(h, out, nil, n)
	if r.Missing() {
		r = c.GraphNodeGetDependencies_v1(h, out, n)
	}
	return r
}
