package cuda_test

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// conditionPTX has the kernels that set conditions. On a real device they call cudaGraphSetConditional.
const conditionPTX = `
.version 8.4
.target sm_50
.address_size 64

.visible .entry setcondition(.param .u64 handle, .param .u32 value) { ret; }
.visible .entry countdown(.param .u64 p, .param .u64 handle) { ret; }
`

func newGraph(t testing.TB, d *cuda.Device) *cuda.Graph {
	g, err := d.NewGraph()
	return keep(t, g, err)
}

// launch instantiates the graph, launches it once and waits.
func launch(t testing.TB, g *cuda.Graph, s *cuda.Stream) {
	t.Helper()
	x, err := g.Instantiate()
	keep(t, x, err)
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Synchronize())
}

func TestGraphNodes(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	s, a, b, h := newStream(t, d), alloc(t, d, 16), alloc(t, d, 16), host(t, d, 16)
	fill := function(t, loadKernels(t, d), "fill")
	begun, err := d.NewEvent(cuda.EventOptions{})
	keep(t, begun, err)
	g := newGraph(t, d)
	node := func(n cuda.Node, err error) cuda.Node {
		t.Helper()
		require.NoError(t, err)
		return n
	}
	start := node(g.AddRecord(begun))
	zero := node(g.AddFill8(a, 0, 16, 0, start))
	kernel := node(g.AddKernel(fill, cuda.LaunchConfig{Block: cuda.Dim3{X: 4}, Attributes: []cuda.LaunchAttribute{cuda.LaunchPriority(-1)}},
		[]cuda.Node{zero}, a, uint32(5), uint32(2)))
	words16 := node(g.AddFill16(a, 8, 2, 6, zero))
	words32 := node(g.AddFill32(a, 12, 1, 7, zero))
	join := node(g.AddEmpty(kernel, words16, words32))
	copied := node(g.AddCopy(cuda.Copy{Dst: cuda.Operand{Memory: b}, Src: cuda.Operand{Memory: a}, Bytes: 16}, join))
	down := node(g.AddCopy(cuda.Copy{Dst: cuda.Operand{Host: h}, Src: cuda.Operand{Memory: b}, Bytes: 16}, copied))
	var calls atomic.Int64
	last := node(g.AddHost(func() { calls.Add(int64(h.Data()[12])) }, down))
	node(g.AddWait(begun, last))

	for n, want := range map[cuda.Node]cuda.NodeKind{start: cuda.RecordNode, zero: cuda.FillNode, kernel: cuda.KernelNode, join: cuda.EmptyNode,
		copied: cuda.CopyNode, last: cuda.HostNode} {
		kind, err := n.Kind()
		require.NoError(t, err)
		require.Equal(t, want, kind)
	}
	require.Equal(t, "kernel", cuda.KernelNode.String())
	deps, err := join.Dependencies()
	require.NoError(t, err)
	require.ElementsMatch(t, []cuda.Node{kernel, words16, words32}, deps)
	roots, err := start.Dependencies()
	require.NoError(t, err)
	require.Empty(t, roots)
	count, err := g.Nodes()
	require.NoError(t, err)
	require.Equal(t, 10, count)

	x, err := g.Instantiate()
	keep(t, x, err)
	require.NoError(t, x.Upload(s))
	for range 2 {
		require.NoError(t, x.Launch(s))
	}
	require.NoError(t, s.Synchronize())
	require.Equal(t, []uint32{5, 5, 6 | 6<<16, 7}, words(t, b, 4))
	require.EqualValues(t, 14, calls.Load())

	// A later launch has another argument, and not the fill of 16-bit words.
	require.NoError(t, x.SetKernel(kernel, fill, cuda.LaunchConfig{Block: cuda.Dim3{X: 4}}, a, uint32(9), uint32(1)))
	require.NoError(t, x.SetEnabled(words16, false))
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []uint32{9, 0, 0, 7}, words(t, b, 4))
	require.Error(t, x.SetEnabled(last, false), "a host function cannot be disabled")

	require.ErrorIs(t, x.SetKernel(cuda.Node{}, fill, cuda.LaunchConfig{}, a, uint32(9), uint32(1)), driver.ErrInvalid)
	require.ErrorIs(t, x.SetEnabled(cuda.Node{}, true), driver.ErrInvalid)
	require.NoError(t, g.Close())
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Synchronize())
	require.ErrorIs(t, x.SetKernel(kernel, fill, cuda.LaunchConfig{}, a, uint32(9), uint32(1)), os.ErrClosed, "the nodes go with the graph")
	require.ErrorIs(t, x.SetEnabled(words16, true), os.ErrClosed)
}

func TestGraphNodesAreChecked(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	a, g, other := alloc(t, d, 16), newGraph(t, d), newGraph(t, d)
	fill := function(t, loadKernels(t, d), "fill")
	foreign, err := other.AddEmpty()
	require.NoError(t, err)
	event, err := d.NewEvent(cuda.EventOptions{})
	keep(t, event, err)
	for name, err := range map[string]error{
		"node of another graph":  second(g.AddEmpty(foreign)),
		"no node":                second(g.AddEmpty(cuda.Node{})),
		"no function":            second(g.AddHost(nil)),
		"arguments":              second(g.AddKernel(fill, cuda.LaunchConfig{}, nil, a)),
		"stream":                 second(g.AddKernel(fill, cuda.LaunchConfig{Stream: newStream(t, d)}, nil, a, uint32(1), uint32(1))),
		"event":                  second(g.AddKernel(fill, cuda.LaunchConfig{Attributes: []cuda.LaunchAttribute{cuda.RecordStart(event)}}, nil, a, uint32(1), uint32(1))),
		"empty fill":             second(g.AddFill8(a, 0, 0, 1)),
		"not aligned":            second(g.AddFill32(a, 2, 1, 1)),
		"graph inside of itself": second(g.AddGraph(g)),
		"empty copy":             second(g.AddCopy(cuda.Copy{Dst: cuda.Operand{Memory: a}, Src: cuda.Operand{Memory: a}})),
	} {
		require.ErrorIs(t, err, driver.ErrInvalid, name)
	}
	require.ErrorIs(t, second(g.AddFill8(a, 8, 9, 1)), driver.ErrRange)
	n, err := g.Nodes()
	require.NoError(t, err)
	require.Zero(t, n, "a refused node is not added")

	f := startFake(t)
	f.FailFunction("cuGraphKernelNodeSetAttribute", 1, cu.ERROR_INVALID_VALUE)
	_, err = g.AddKernel(fill, cuda.LaunchConfig{Attributes: []cuda.LaunchAttribute{cuda.LaunchPriority(0)}}, nil, a, uint32(1), uint32(1))
	require.Error(t, err)
	f.FailFunction("cuGraphRetainUserObject", 1, cu.ERROR_OUT_OF_MEMORY)
	_, err = g.AddHost(func() {})
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	n, err = g.Nodes()
	require.NoError(t, err)
	require.Zero(t, n, "a node without its attributes, or without its function, is removed")
}

func TestGraphOfTypedKernel(t *testing.T) {
	d := openDevice(t, 0)
	type args struct {
		P        *cuda.Buffer[uint32]
		Value, N uint32
	}
	k, err := cuda.KernelOf[args](function(t, loadKernels(t, d), "fill"))
	require.NoError(t, err)
	b, err := cuda.NewBuffer[uint32](d, 2)
	keep(t, b, err)
	child, g, s := newGraph(t, d), newGraph(t, d), newStream(t, d)
	_, err = k.AddTo(child, cuda.LaunchConfig{Block: cuda.Dim3{X: 2}}, args{b, 3, 2})
	require.NoError(t, err)
	n, err := g.AddGraph(child)
	require.NoError(t, err)
	kind, err := n.Kind()
	require.NoError(t, err)
	require.Equal(t, cuda.GraphNode, kind)
	require.NoError(t, child.Close(), "the node has a copy")
	launch(t, g, s)
	got, err := b.Values()
	require.NoError(t, err)
	require.Equal(t, []uint32{3, 3}, got)
	_, err = k.AddTo(g, cuda.LaunchConfig{}, args{Value: 1})
	require.ErrorIs(t, err, driver.ErrInvalid, "no buffer")
}

func TestGraphUpdate(t *testing.T) {
	d := openDevice(t, 0)
	s, a, b := newStream(t, d), alloc(t, d, 4), alloc(t, d, 4)
	capture := func(record func() error) *cuda.Graph {
		g, err := s.Capture(record)
		return keep(t, g, err)
	}
	x, err := capture(func() error { return s.Fill32(a, 0, 1, 1) }).Instantiate()
	keep(t, x, err)
	require.NoError(t, x.Update(capture(func() error { return s.Fill32(b, 0, 1, 2) })))
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Synchronize())
	require.Zero(t, words(t, a, 1)[0])
	require.EqualValues(t, 2, words(t, b, 1)[0])

	for reason, g := range map[cu.GraphExecUpdateResult]*cuda.Graph{
		cu.GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED:  capture(func() error { return errors.Join(s.Fill32(a, 0, 1, 1), s.Fill32(b, 0, 1, 1)) }),
		cu.GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED: capture(func() error { return s.CopyOnDevice(a, 0, b, 0, 4) }),
	} {
		err = x.Update(g)
		var u *cuda.UpdateError
		require.ErrorAs(t, err, &u)
		require.Equal(t, reason, u.Reason)
		var e *cuda.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, cu.ERROR_GRAPH_EXEC_UPDATE_FAILURE, e.Code)
		require.ErrorContains(t, err, "instantiate the graph instead")
	}
	require.NoError(t, b.Close())
	require.NoError(t, s.Synchronize())
}

// Memory that only an updated graph uses may be closed while the graph is queued.
func TestGraphUpdateKeepsMemory(t *testing.T) {
	d := openDevice(t, 0)
	s, a := newStream(t, d), alloc(t, d, 4)
	b, err := d.AllocMemory(4)
	require.NoError(t, err)
	first, err := s.Capture(func() error { return s.Fill32(a, 0, 1, 1) })
	keep(t, first, err)
	second, err := s.Capture(func() error { return s.Fill32(b, 0, 1, 2) })
	keep(t, second, err)
	x, err := first.Instantiate()
	keep(t, x, err)
	require.NoError(t, x.Update(second))
	require.NoError(t, x.Launch(s))
	require.NoError(t, b.Close())
	require.NoError(t, s.Synchronize(), "Close has waited for the launch")
}

func TestGraphConditions(t *testing.T) {
	d := openDevice(t, 0)
	mod, err := d.LoadModule([]byte(conditionPTX))
	keep(t, mod, err)
	set, countdown := function(t, mod, "setcondition"), function(t, mod, "countdown")
	s, m := newStream(t, d), alloc(t, d, 32)

	g := newGraph(t, d)
	no, err := g.NewCondition(0, true)
	require.NoError(t, err)
	yes, err := g.NewCondition(0, true)
	require.NoError(t, err)
	setYes, err := g.AddKernel(set, cuda.LaunchConfig{}, nil, yes.Handle(), uint32(1))
	require.NoError(t, err)
	n, body, err := g.AddIf(no)
	require.NoError(t, err)
	kind, err := n.Kind()
	require.NoError(t, err)
	require.Equal(t, cuda.ConditionNode, kind)
	_, err = body.AddFill32(m, 0, 1, 1)
	require.NoError(t, err)
	_, then, otherwise, err := g.AddIfElse(yes, setYes)
	require.NoError(t, err)
	_, err = then.AddFill32(m, 4, 1, 2)
	require.NoError(t, err)
	_, err = otherwise.AddFill32(m, 8, 1, 3)
	require.NoError(t, err)

	// While the number at 12 is above 0, it is decremented.
	loop, err := g.NewCondition(1, true)
	require.NoError(t, err)
	begin, err := g.AddFill32(m, 12, 1, 5)
	require.NoError(t, err)
	_, turn, err := g.AddWhile(loop, begin)
	require.NoError(t, err)
	_, err = turn.AddKernel(countdown, cuda.LaunchConfig{}, nil, cu.DevicePtr(m.DevicePointer())+12, loop.Handle())
	require.NoError(t, err)
	_, err = turn.AddFill32(m, 16, 1, 4)
	require.NoError(t, err)

	choice, err := g.NewCondition(1, true)
	require.NoError(t, err)
	_, bodies, err := g.AddSwitch(choice, 3)
	require.NoError(t, err)
	require.Len(t, bodies, 3)
	for i, b := range bodies {
		require.NoError(t, s.CaptureInto(b, nil, func() error { return s.Fill32(m, 20, 1, uint32(10+i)) }))
		require.NoError(t, b.Close())
	}
	launch(t, g, s)
	require.Equal(t, []uint32{0, 2, 0, 0, 4, 11}, words(t, m, 6))

	_, err = body.Instantiate()
	require.ErrorIs(t, err, driver.ErrInvalid, "a body is part of its graph")
	_, err = body.AddHost(func() {})
	require.Error(t, err, "a body has only work of one device")
	_, _, err = g.AddIf(no)
	require.Error(t, err, "a condition is used once")
	other := newGraph(t, d)
	_, _, err = other.AddIf(no)
	require.ErrorIs(t, err, driver.ErrInvalid, "a condition of another graph")
	unused := newGraph(t, d)
	_, err = unused.NewCondition(0, false)
	require.NoError(t, err)
	_, err = unused.Instantiate()
	require.Error(t, err, "a condition that no node uses")
	_, err = unused.NewCondition(1, false)
	require.ErrorIs(t, err, driver.ErrInvalid, "an initial value that is not set")
}

func TestCaptureInto(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	s, m, g := newStream(t, d), alloc(t, d, 8), newGraph(t, d)
	first, err := g.AddFill8(m, 0, 8, 1)
	require.NoError(t, err)
	var calls atomic.Int64
	require.NoError(t, s.CaptureInto(g, []cuda.Node{first}, func() error {
		return errors.Join(s.Fill8(m, 4, 4, 2), s.LaunchHost(func() { calls.Add(1) }))
	}))
	n, err := g.Nodes()
	require.NoError(t, err)
	require.Equal(t, 3, n)
	launch(t, g, s)
	require.Equal(t, []uint32{0x01010101, 0x02020202}, words(t, m, 2))
	require.EqualValues(t, 1, calls.Load())
	broken := errors.New("broken")
	require.ErrorIs(t, s.CaptureInto(g, nil, func() error { return broken }), broken)
	require.NoError(t, s.Synchronize(), "the capture has ended")
	require.ErrorIs(t, s.CaptureInto(g, []cuda.Node{{}}, func() error { return nil }), driver.ErrInvalid)
}

// A launch fails if an object of the graph is closed, whatever node uses it and however the graph was made.
func TestGraphLaunchAfterClose(t *testing.T) {
	d := openDevice(t, 0)
	hostCallsEnd(t)
	s, keptMemory := newStream(t, d), alloc(t, d, 16)
	fill := function(t, loadKernels(t, d), "fill")
	block := cuda.LaunchConfig{Block: cuda.Dim3{X: 4}}
	empty := func(g *cuda.Graph) cuda.Node {
		n, err := g.AddEmpty()
		require.NoError(t, err)
		return n
	}
	for name, build := range map[string]func(t *testing.T, g *cuda.Graph, m *cuda.Memory) (cuda.Node, error){
		"kernel": func(_ *testing.T, g *cuda.Graph, m *cuda.Memory) (cuda.Node, error) {
			return g.AddKernel(fill, block, nil, m, uint32(1), uint32(4))
		},
		"fill": func(_ *testing.T, g *cuda.Graph, m *cuda.Memory) (cuda.Node, error) { return g.AddFill8(m, 0, 16, 1) },
		"copy to": func(_ *testing.T, g *cuda.Graph, m *cuda.Memory) (cuda.Node, error) {
			return g.AddCopy(cuda.Copy{Dst: cuda.Operand{Memory: m}, Src: cuda.Operand{Memory: keptMemory}, Bytes: 16})
		},
		"copy from": func(_ *testing.T, g *cuda.Graph, m *cuda.Memory) (cuda.Node, error) {
			return g.AddCopy(cuda.Copy{Dst: cuda.Operand{Memory: keptMemory}, Src: cuda.Operand{Memory: m}, Bytes: 16})
		},
		"graph within": func(t *testing.T, g *cuda.Graph, m *cuda.Memory) (cuda.Node, error) {
			child := newGraph(t, d)
			_, err := child.AddFill8(m, 0, 16, 1)
			require.NoError(t, err)
			n, err := g.AddGraph(child)
			require.NoError(t, child.Close())
			return n, err
		},
		"captured": func(t *testing.T, g *cuda.Graph, m *cuda.Memory) (cuda.Node, error) {
			return empty(g), s.CaptureInto(g, nil, func() error { return s.Fill8(m, 0, 16, 1) })
		},
		"body of a condition": func(t *testing.T, g *cuda.Graph, m *cuda.Memory) (cuda.Node, error) {
			c, err := g.NewCondition(1, true)
			require.NoError(t, err)
			_, body, err := g.AddIf(c)
			require.NoError(t, err)
			return body.AddFill8(m, 0, 16, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGraph(t, d)
			m, err := d.AllocMemory(16)
			require.NoError(t, err)
			_, err = build(t, g, m)
			require.NoError(t, err)
			x, err := g.Instantiate()
			keep(t, x, err)
			require.NoError(t, x.Launch(s))
			require.NoError(t, m.Close())
			require.ErrorIs(t, x.Launch(s), os.ErrClosed)
			again, err := g.Instantiate()
			keep(t, again, err)
			require.ErrorIs(t, again.Launch(s), os.ErrClosed, "instantiated after the close")
			require.NoError(t, s.Synchronize(), "the context is usable")

			other := newGraph(t, d)
			_, err = build(t, other, keptMemory)
			require.NoError(t, err)
			if name == "body of a condition" {
				return // the driver does not update graphs with conditions
			}
			require.NoError(t, x.Update(other))
			require.NoError(t, x.Launch(s), "the update has replaced the closed memory")
			require.NoError(t, s.Synchronize())
		})
	}
	t.Run("event", func(t *testing.T) {
		g := newGraph(t, d)
		e, err := d.NewEvent(cuda.EventOptions{})
		require.NoError(t, err)
		_, err = g.AddRecord(e)
		require.NoError(t, err)
		x, err := g.Instantiate()
		keep(t, x, err)
		require.NoError(t, e.Close())
		require.ErrorIs(t, x.Launch(s), os.ErrClosed)
	})
	t.Run("module", func(t *testing.T) {
		g, mod := newGraph(t, d), loadKernels(t, d)
		_, err := g.AddKernel(function(t, mod, "fill"), block, nil, keptMemory, uint32(1), uint32(4))
		require.NoError(t, err)
		x, err := g.Instantiate()
		keep(t, x, err)
		require.NoError(t, mod.Close())
		require.ErrorIs(t, x.Launch(s), os.ErrClosed)
	})
}

// Replaced arguments are not used any more: their memory may be closed, and their number does not grow.
func TestGraphDropsReplacedArguments(t *testing.T) {
	d := openDevice(t, 0)
	s, fill := newStream(t, d), function(t, loadKernels(t, d), "fill")
	block := cuda.LaunchConfig{Block: cuda.Dim3{X: 4}}
	first, err := d.AllocMemory(16)
	require.NoError(t, err)
	g, other := newGraph(t, d), alloc(t, d, 16)
	n, err := g.AddKernel(fill, block, nil, first, uint32(1), uint32(4))
	require.NoError(t, err)
	m, err := g.AddFill8(other, 0, 16, 3, n)
	require.NoError(t, err)
	x, err := g.Instantiate()
	keep(t, x, err)

	for i := range 50 {
		next, err := d.AllocMemory(16)
		require.NoError(t, err)
		require.NoError(t, x.SetKernel(n, fill, block, next, uint32(i), uint32(4)))
		require.NoError(t, x.Launch(s))
		require.NoError(t, first.Close(), "memory that the node used before")
		require.NoError(t, x.Launch(s))
		require.NoError(t, s.Synchronize())
		require.EqualValues(t, i, words(t, next, 1)[0])
		require.Equal(t, 3, cuda.GraphObjects(x), "memory, memory and module")
		first = next
	}
	for i := range 50 {
		next, err := d.AllocMemory(16)
		require.NoError(t, err)
		update := newGraph(t, d)
		k, err := update.AddKernel(fill, block, nil, next, uint32(i), uint32(4))
		require.NoError(t, err)
		_, err = update.AddFill8(other, 0, 16, 3, k)
		require.NoError(t, err)
		require.NoError(t, x.Update(update))
		require.NoError(t, update.Close())
		require.NoError(t, first.Close())
		require.NoError(t, x.Launch(s))
		require.Equal(t, 3, cuda.GraphObjects(x))
		first = next
	}
	// A node of the first graph is paired with the node of the update.
	last := alloc(t, d, 16)
	require.NoError(t, x.SetKernel(n, fill, block, last, uint32(7), uint32(4)))
	require.NoError(t, first.Close())
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Synchronize())
	require.EqualValues(t, 7, words(t, last, 1)[0])

	require.NoError(t, x.SetEnabled(m, false))
	require.NoError(t, other.Close())
	require.NoError(t, x.Launch(s), "a disabled node uses nothing")
	require.NoError(t, s.Synchronize())
	require.NoError(t, x.SetEnabled(m, true))
	require.ErrorIs(t, x.Launch(s), os.ErrClosed)
}
