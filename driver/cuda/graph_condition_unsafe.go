package cuda

import (
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Condition is a number that kernels of a graph set (cudaGraphSetConditional) and on which one node of the same graph
// depends. Its handle is an argument of kernels.
type Condition struct {
	g      *Graph
	handle cu.GraphConditionalHandle
}

// NewCondition returns a condition of the graph, which owns it. It must be used in exactly one of [Graph.AddIf],
// [Graph.AddWhile] and [Graph.AddSwitch]. If set is true, the condition has the value initial at the beginning of each
// launch. Otherwise it is undefined until a kernel sets it, and initial must be 0. It needs CUDA 12.4.
func (g *Graph) NewCondition(initial uint32, set bool) (Condition, error) {
	flags := uint32(0)
	if set {
		flags = cu.GRAPH_COND_ASSIGN_DEFAULT
	}
	condition := Condition{g: g}
	handle := new(cu.GraphConditionalHandle)
	err := g.with(func(c cu.Context) error {
		return check("cuGraphConditionalHandleCreate", c.GraphConditionalHandleCreate(handle, g.handle, g.root().p.ctx, initial, flags))
	})
	condition.handle = *handle
	return condition, g.dev.opError("new condition", err)
}

// Handle returns the condition as an argument of kernels, of 8 bytes.
func (c Condition) Handle() uint64 { return uint64(c.handle) }

// AddIf adds a node that executes a body if the condition is not 0. The caller adds nodes to the body: kernels, copies,
// fills, empty nodes and graphs of the same device, also by [Stream.CaptureInto]. The graph owns the body, whose Close
// does nothing. It needs CUDA 12.4.
func (g *Graph) AddIf(c Condition, after ...Node) (n Node, body *Graph, err error) {
	n, bodies, err := g.addCondition(c, cu.GRAPH_COND_TYPE_IF, 1, after)
	if err != nil {
		return Node{}, nil, err
	}
	return n, bodies[0], nil
}

// AddIfElse is AddIf with a second body, which is executed if the condition is 0. It needs CUDA 12.8.
func (g *Graph) AddIfElse(c Condition, after ...Node) (n Node, then, otherwise *Graph, err error) {
	n, bodies, err := g.addCondition(c, cu.GRAPH_COND_TYPE_IF, 2, after)
	if err != nil {
		return Node{}, nil, nil, err
	}
	return n, bodies[0], bodies[1], nil
}

// AddWhile adds a node that executes a body until the condition is 0, which is checked before each execution. A kernel of
// the body must change the condition. The body is like that of [Graph.AddIf]. It needs CUDA 12.4.
func (g *Graph) AddWhile(c Condition, after ...Node) (n Node, body *Graph, err error) {
	n, bodies, err := g.addCondition(c, cu.GRAPH_COND_TYPE_WHILE, 1, after)
	if err != nil {
		return Node{}, nil, err
	}
	return n, bodies[0], nil
}

// AddSwitch adds a node that executes the body whose index is the condition's value, or none if there is no such body.
// The bodies are like that of [Graph.AddIf]. It needs CUDA 12.8.
func (g *Graph) AddSwitch(c Condition, bodies int, after ...Node) (n Node, body []*Graph, err error) {
	return g.addCondition(c, cu.GRAPH_COND_TYPE_SWITCH, bodies, after)
}

func (g *Graph) addCondition(on Condition, kind cu.GraphConditionalNodeType, bodies int, after []Node) (Node, []*Graph, error) {
	if on.g != g || bodies < 1 || bodies > 1<<16 {
		return Node{}, nil, g.dev.opError("add condition", invalid("a condition of another graph, or %d bodies", bodies))
	}
	p := &cu.GraphNodeParams{Type: cu.GRAPH_NODE_TYPE_CONDITIONAL}
	q := p.Conditional()
	q.Handle, q.Type, q.Size, q.Ctx = on.handle, kind, uint32(bodies), g.root().p.ctx
	var graphs []*Graph
	n, err := g.add("add condition", nil, after, func(c cu.Context, out, deps *cu.GraphNode, n uint64) error {
		if err := check("cuGraphAddNode", c.GraphAddNode(out, g.handle, deps, nil, n, p)); err != nil {
			return err
		}
		// The driver owns the array of the bodies.
		for _, h := range unsafe.Slice(q.PhGraph_out, bodies) {
			graphs = append(graphs, &Graph{dev: g.dev, handle: h, outer: g.root()})
		}
		return nil
	})
	return n, graphs, err
}
