package node_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// program is one program for all roles.
func program(t testing.TB, opts nodepkg.Options) (*nodepkg.Node, func(context.Context, fixture.ScaleIn) (fixture.NestedOut, error)) {
	t.Helper()
	dev := fixture.Device(t)
	opts.Devices = fixture.DriversOf(dev)
	node, err := nodepkg.Open(context.Background(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	double, err := nodepkg.Share(node, "twice", func(_ context.Context, in fixture.ScaleIn) (fixture.NestedOut, error) {
		if in.X == nil {
			return fixture.NestedOut{}, endpoint.ErrInvalid
		}
		x, err := tensor.Float32s(in.X)
		if err != nil {
			return fixture.NestedOut{}, err
		}
		y, err := fixture.Filled(dev, len(x), x[0]*in.By)
		return fixture.NestedOut{Sums: []float64{float64(len(x))}, Same: y}, err
	})
	require.NoError(t, err)
	registerRole(t, node.Registry(), dev)
	node.Ready()
	return node, double
}

// A function returns the same type in every role.
func TestNodeShareTypes(t *testing.T) {
	drivertest.Leaks(t)
	socket := proctest.SocketPath(t)
	for _, opts := range []nodepkg.Options{
		{Mode: nodepkg.ModeLocal}, {Mode: nodepkg.ModeServer}, {Mode: nodepkg.ModeClient}, {Mode: nodepkg.ModeClient, Client: endpoint.ClientOptions{OverSocket: true}},
	} {
		opts.Socket = socket
		mode := opts.Mode
		node, twice := program(t, opts)
		require.Equal(t, mode, node.Mode())
		x, err := fixture.Filled(fixture.Device(t), 3, 4)
		require.NoError(t, err)
		out, err := twice(context.Background(), fixture.ScaleIn{X: x, By: 2})
		require.NoError(t, err, mode)
		require.Equal(t, []float64{3}, out.Sums, mode)
		y := out.Same.(*tensor.Tensor)
		require.Equal(t, []float32{8, 8, 8}, fixture.Values(t, y), mode)
		require.NoError(t, y.Close())
		require.NoError(t, x.Close())
		checkRole(t, node)
	}
}

// checkRole checks what holds in every role.
func checkRole(t *testing.T, node *nodepkg.Node) {
	ctx := context.Background()
	err := node.Call(ctx, "nothing", nil, nil)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	require.ErrorIs(t, err, message.CodeProvider)
	err = node.Call(ctx, "twice", map[string]any{"by": 1, "zz": 1}, nil)
	require.ErrorIs(t, err, message.CodeSerialization)
	require.ErrorContains(t, err, `"zz"`)
	err = node.Call(ctx, "twice", fixture.ScaleIn{}, nil)
	require.ErrorIs(t, err, message.CodeSerialization)
	require.ErrorContains(t, err, `endpoint "twice": argument: field x: it is missing; expected a tensor`)
	require.ErrorIs(t, node.Call(ctx, "twice", tensor.Tensor{}, nil), endpoint.ErrInvalid)
	require.ErrorContains(t, node.Call(ctx, "twice", make(chan int), nil), "argument")

	_, err = node.Submit(ctx, "twice", fixture.ScaleIn{})
	require.ErrorIs(t, err, message.CodeSerialization)
	tasks, err := node.Tasks(ctx, endpoint.TaskFilter{Mine: true})
	require.NoError(t, err)
	require.Empty(t, tasks, "a task with a bad argument is not made")
	list, err := node.Endpoints(ctx)
	require.NoError(t, err)
	require.Equal(t, "fixture.ScaleIn", list[slices.IndexFunc(list, func(e endpoint.EndpointInfo) bool { return e.Name == "twice" })].In)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, node.Call(gone, "twice", nil, nil), context.Canceled)
	about, err := node.Info(ctx)
	require.NoError(t, err)
	require.Equal(t, node.Mode(), about.Mode)
	proctest.Eventually(t, fixture.WaitLimit, "the server is ready, except without one", func() bool {
		about, err := node.Info(ctx)
		return err == nil && about.ServerReady == (node.Mode() != nodepkg.ModeLocal)
	})
	checkMemory(t, node)
}

// oddMemory is memory with an unusual export.
type oddMemory struct {
	driver.Memory
	odd string
}

// Export fails, or names another device, or another kind of handle.
func (m oddMemory) Export() (driver.Handle, error) {
	if m.odd == "private" {
		return driver.Handle{}, &driver.UnsupportedError{Feature: "sharing private memory"}
	}
	h, err := m.Memory.Export()
	if err != nil {
		return h, err
	}
	switch m.odd {
	case "foreign":
		h.Device[0] ^= 0xFF
	case "ipc":
		h.Close()
		h = driver.Handle{Kind: driver.CUDAIPC, Device: h.Device, Bytes: h.Bytes, Blob: make([]byte, driver.CUDAIPC.BlobBytes())}
	}
	return h, nil
}

// Handle describes the odd export.
func (m oddMemory) Handle() (driver.Handle, error) {
	h, err := m.Export()
	h.Close()
	h.File = nil
	return h, err
}

// oddTensor returns a tensor in such memory. With CUDA, the kind cuda-ipc is genuine.
func oddTensor(dev driver.Device, odd string) (*tensor.Tensor, error) {
	mem, err := dev.Alloc(16)
	if err != nil {
		return nil, err
	}
	mem = oddMemory{mem, odd}
	if gpu, ok := dev.(*cuda.Device); ok && odd == "ipc" {
		if err := mem.Close(); err != nil {
			return nil, err
		}
		if mem, err = gpu.AllocLegacy(16); err != nil {
			return nil, err
		}
		if _, err := mem.WriteAt(make([]byte, 16), 0); err != nil {
			return nil, err
		}
	}
	s := tensor.NewStorage(mem)
	defer s.Close()
	return tensor.New(s, tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{4}})
}

// oddIn selects a tensor in odd memory.
type oddIn struct{ Odd string }

// registerRole registers the functions of checkMemory.
func registerRole(t testing.TB, r *endpoint.Registry, dev driver.Device) {
	t.Helper()
	clear := func(_ context.Context, in fixture.ScaleIn) (bool, error) { return true, in.X.Zero() }
	require.NoError(t, endpoint.Register(r, "clear", clear))
	require.NoError(t, endpoint.Register(r, "clear in place", clear, endpoint.WritableArguments()))
	odd := func(_ context.Context, in oddIn) (*tensor.Tensor, error) { return oddTensor(dev, in.Odd) }
	require.NoError(t, endpoint.Register(r, "odd", odd))
	require.NoError(t, endpoint.RegisterStream(r, "vectors", func(ctx context.Context, n int) iter.Seq2[*tensor.Tensor, error] {
		return func(yield func(*tensor.Tensor, error) bool) {
			for i := 0; i < n && yield(fixture.Filled(dev, 1, float32(i))); i++ {
			}
		}
	}))
	require.NoError(t, endpoint.RegisterStream(r, "odd stream", func(ctx context.Context, in oddIn) iter.Seq2[*tensor.Tensor, error] {
		return func(yield func(*tensor.Tensor, error) bool) { yield(oddTensor(dev, in.Odd)) }
	}))
}

// checkMemory checks what holds for memory in every role.
func checkMemory(t *testing.T, node *nodepkg.Node) {
	ctx := context.Background()
	dev := fixture.Device(t)
	x, err := fixture.Filled(dev, 4, 1)
	require.NoError(t, err)
	defer x.Close()

	err = node.Call(ctx, "clear", fixture.ScaleIn{X: x}, nil)
	require.ErrorIs(t, err, driver.ErrReadOnly, "arguments are read-only")
	require.ErrorIs(t, err, message.CodePermissionDenied)
	require.Equal(t, []float32{1, 1, 1, 1}, fixture.Values(t, x))
	require.NoError(t, node.Call(ctx, "clear in place", fixture.ScaleIn{X: x}, nil))
	require.Equal(t, []float32{0, 0, 0, 0}, fixture.Values(t, x))
	big, err := fixture.Filled(dev, 1<<13, 1) // does not fit into a frame
	require.NoError(t, err)
	defer big.Close()
	y, err := endpoint.Call[fixture.NestedOut](ctx, node, "twice", fixture.ScaleIn{X: big, By: 1})
	require.NoError(t, err)
	result := y.Same.(*tensor.Tensor)
	require.ErrorIs(t, result.Zero(), driver.ErrReadOnly, "results are read-only")
	require.NoError(t, node.Call(ctx, "clear in place", fixture.ScaleIn{X: result}, nil), "that is a courtesy as long as nobody froze the memory")
	require.NoError(t, result.Close())
	if d, err := x.Storage().Memory().Describe(); err == nil && d.Freezable {
		require.NoError(t, x.Storage().Memory().Freeze())
		err = node.Call(ctx, "clear in place", fixture.ScaleIn{X: x}, nil)
		require.ErrorIs(t, err, driver.ErrReadOnly)
		require.ErrorContains(t, err, "frozen")
	}

	for odd, word := range map[string]string{"private": "sharing private memory", "foreign": "memory of device"} {
		x, err := oddTensor(dev, odd)
		require.NoError(t, err)
		err = node.Call(ctx, "twice", fixture.ScaleIn{X: x}, nil)
		require.ErrorIs(t, err, errors.ErrUnsupported, odd)
		require.ErrorContains(t, err, word)
		_, err = node.Submit(ctx, "twice", fixture.ScaleIn{X: x})
		require.ErrorIs(t, err, errors.ErrUnsupported, odd)
		_, err = node.InvalidateCall(ctx, "twice", fixture.ScaleIn{X: x})
		require.ErrorIs(t, err, errors.ErrUnsupported, odd)
		require.NoError(t, x.Close())
	}
	for odd, word := range map[string]string{"private": "sharing private memory", "foreign": "memory of device", "ipc": "managed"} {
		var got *tensor.Tensor
		err := node.Call(ctx, "odd", oddIn{odd}, &got)
		require.ErrorIs(t, err, errors.ErrUnsupported, odd)
		require.ErrorContains(t, err, word)
		require.Nil(t, got)
		for _, err = range endpoint.Stream[*tensor.Tensor](ctx, node, "odd stream", oddIn{odd}) {
		}
		require.ErrorIs(t, err, errors.ErrUnsupported, odd)
		require.ErrorContains(t, err, word)
	}
}
