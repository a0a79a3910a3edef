package endpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// More endpoints of a child process that serves, for tests that hold a function at a certain place: it waits at a gate
// until a test opens it.

// gates holds the gates of functions by name.
type gates struct {
	mu sync.Mutex
	of map[string]chan struct{}
}

func (g *gates) get(name string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == nil {
		g.of = map[string]chan struct{}{}
	}
	if g.of[name] == nil {
		g.of[name] = make(chan struct{})
	}
	return g.of[name]
}

// open lets current and later waiters pass.
func (g *gates) open(name string) {
	gate := g.get(name)
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
}

func (g *gates) wait(ctx context.Context, name string) error {
	select {
	case <-g.get(name):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type gateIn struct {
	Gate string `json:"gate,omitempty"`
	N    int    `json:"n,omitempty"`
}

type modelIn struct {
	Size  int    `json:"size,omitempty"`
	Label string `json:"label,omitempty"`
}

// filled returns a vector of n elements with that value.
func filled(dev driver.Device, n int, value float32) (*tensor.Tensor, error) {
	values := make([]float32, n)
	for i := range values {
		values[i] = value
	}
	return tensor.FromSlice(dev, tensor.Shape{int64(n)}, values)
}

// moreEndpoints registers them. They count their runs.
func moreEndpoints(r *endpoint.Registry, dev driver.Device, counts *counters) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	g := new(gates)
	must(endpoint.Register(r, "open", func(_ context.Context, gate string) (bool, error) {
		g.open(gate)
		return true, nil
	}, endpoint.NoCache()))
	gated := func(name string, opts ...endpoint.Option) {
		must(endpoint.Register(r, name, func(ctx context.Context, in gateIn) (int, error) {
			counts.add(name)
			defer counts.add(name + " ended")
			if err := g.wait(ctx, in.Gate); err != nil {
				counts.add(name + " told to stop")
				return 0, err
			}
			return in.N, nil
		}, opts...))
	}
	gated("gated")
	gated("gated run", endpoint.NoCache())
	gated("gated task", endpoint.AsTask(), endpoint.NoCache())
	gated("gated cached task", endpoint.AsTask())
	gated("hurried", endpoint.NoCache(), endpoint.Timeout(20e6))

	must(endpoint.Register(r, "stubborn", func(_ context.Context, in gateIn) (int, error) {
		counts.add("stubborn")
		<-g.get(in.Gate)
		return in.N, nil
	}, endpoint.NoCache()))
	must(endpoint.Register(r, "build", func(ctx context.Context, in gateIn) (uint64, error) {
		n := counts.add("build")
		return n, g.wait(ctx, in.Gate)
	}))

	model := func(ctx context.Context, in modelIn) (*tensor.Tensor, error) {
		counts.add("model")
		return filled(dev, in.Size, float32(in.Size))
	}
	must(endpoint.Register(r, "model", model, endpoint.Managed(), endpoint.CacheKey("model:{size}")))
	must(endpoint.Register(r, "gated model", func(ctx context.Context, in modelIn) (*tensor.Tensor, error) {
		counts.add("gated model")
		if err := g.wait(ctx, "model"); err != nil {
			return nil, err
		}
		return filled(dev, in.Size, float32(in.Size))
	}, endpoint.Managed()))
	must(endpoint.Register(r, "map", func(_ context.Context, in map[string]int) (int, error) {
		counts.add("map")
		return len(in), nil
	}))
	must(endpoint.Register(r, "fresh model", model, endpoint.Managed(), endpoint.NoCache()))
	must(endpoint.Register(r, "model task", model, endpoint.Managed(), endpoint.AsTask(), endpoint.NoCache()))
	must(endpoint.Register(r, "plain model", model, endpoint.CacheKey("model:{size}")))
	must(endpoint.Register(r, "plain model task", model, endpoint.AsTask(), endpoint.NoCache()))
	must(endpoint.Register(r, "number", func(_ context.Context, in modelIn) (int, error) { return in.Size, nil }, endpoint.Managed()))
	must(endpoint.Register(r, "no model", func(context.Context, modelIn) (*tensor.Tensor, error) {
		counts.add("no model")
		return nil, nil
	}, endpoint.Managed()))
	for name, opts := range map[string][]endpoint.Option{"channel": nil, "managed channel": {endpoint.Managed()}} {
		must(endpoint.Register(r, name, func(context.Context, modelIn) (any, error) {
			counts.add(name)
			t, err := filled(dev, 8, 1)
			return map[string]any{"t": t, "c": make(chan int)}, err
		}, opts...))
	}
	for name, opts := range map[string][]endpoint.Option{
		"exit": nil, "exit uncached": {endpoint.NoCache()}, "exit task": {endpoint.AsTask()},
	} {
		must(endpoint.Register(r, name, func(context.Context, modelIn) (int, error) {
			runtime.Goexit()
			return 0, nil
		}, opts...))
	}
	for name, end := range map[string]func(){"exit at gate": runtime.Goexit, "panic at gate": func() { panic("at the gate") }} {
		must(endpoint.Register(r, name, func(ctx context.Context, in gateIn) (int, error) {
			counts.add(name)
			if err := g.wait(ctx, in.Gate); err != nil {
				return 0, err
			}
			end()
			return 0, nil
		}))
	}
	must(endpoint.Register(r, "steps", func(ctx context.Context, in gateIn) (int, error) {
		for i := range in.N {
			task.Report(ctx, int64(i+1), int64(in.N), fmt.Sprintf("step %d", i+1))
		}
		return in.N, g.wait(ctx, in.Gate)
	}, endpoint.AsTask(), endpoint.NoCache()))

	must(endpoint.Register(r, "fill", func(_ context.Context, in scaleIn) (int, error) {
		source, err := filled(dev, int(in.X.NumElements()), in.By)
		if err != nil {
			return 0, err
		}
		defer source.Close()
		return 1, in.X.CopyFrom(source)
	}, endpoint.WritableArguments(), endpoint.NoCache()))
	must(endpoint.Register(r, "sum", func(_ context.Context, in scaleIn) (float64, error) {
		counts.add("sum")
		values, err := tensor.Float32s(in.X)
		var sum float64
		for _, v := range values {
			sum += float64(v)
		}
		return sum, err
	}))
	keep(r, dev, must)
	raising(r, dev, must)
	must(endpoint.Register(r, "tree", func(_ context.Context, in modelIn) (map[string]any, error) {
		t, err := filled(dev, in.Size, 1)
		sd := module.NewStateDict()
		return map[string]any{"a": map[string]any{"b": []any{t, "leaf"}}, "sd": sd}, errors.Join(err, sd.Set("x", t.Alias()))
	}))
	serialized(r, must)
	must(endpoint.Register(r, "bytes", func(_ context.Context, in struct {
		N    int    `cbor:",omitempty"`
		Data []byte `cbor:",omitempty"`
	}) ([]byte, error) {
		counts.add("bytes")
		return make([]byte, in.N), nil
	}))
	must(endpoint.Register(r, "list", func(_ context.Context, in modelIn) ([]bool, error) {
		counts.add("list")
		return make([]bool, in.Size), nil
	}))
}

// keep registers endpoints around a tensor that the owner keeps and continues to write.
func keep(r *endpoint.Registry, dev driver.Device, must func(error)) {
	var once sync.Once
	var kept *tensor.Tensor
	get := func() *tensor.Tensor {
		once.Do(func() {
			var err error
			kept, err = filled(dev, 4, 1)
			must(err)
		})
		return kept
	}
	must(endpoint.Register(r, "kept", func(context.Context, modelIn) (map[string][]*tensor.Tensor, error) {
		return map[string][]*tensor.Tensor{"list": {get().Alias()}}, nil
	}, endpoint.NoCache()))
	must(endpoint.Register(r, "poke", func(_ context.Context, value float32) (bool, error) {
		source, err := filled(dev, 4, value)
		if err != nil {
			return false, err
		}
		defer source.Close()
		return true, get().CopyFrom(source)
	}, endpoint.NoCache()))
}

// serialized registers endpoints that report how many of them run at once.
func serialized(r *endpoint.Registry, must func(error)) {
	type in struct {
		Key string `json:"key"`
		N   int    `json:"n"`
	}
	var mu sync.Mutex
	running := map[string]int{}
	run := func(_ context.Context, in in) (int, error) {
		mu.Lock()
		running[in.Key]++
		running["all"]++
		now := running["all"]
		if running[in.Key] > 1 {
			now = 1000
		}
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		defer mu.Unlock()
		running[in.Key]--
		running["all"]--
		return now, nil
	}
	must(endpoint.Register(r, "one by one", run, endpoint.NoCache(), endpoint.Serialized()))
	must(endpoint.Register(r, "one by key", run, endpoint.NoCache(), endpoint.SerializedBy("{key}")))
}

func driversOf(dev driver.Device) []driver.Device { return []driver.Device{dev} }

// callingWith returns a client of an owner with the given settings on a separate socket.
func callingWith(t testing.TB, s service) (*endpoint.Client, *child) {
	t.Helper()
	o := start(t)
	s.Socket = proctest.SocketPath(t)
	o.serveWith(s)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket, Devices: driversOf(testDevice(t))})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, o
}

// Tensors are declared by tags, options and offers, and invalid declarations are refused.
func TestDeclaredTensors(t *testing.T) {
	t.Parallel()
	type in struct {
		X *tensor.Tensor `json:"x" tensor:"float32[ -1, 3]"`
		Y *tensor.Tensor `json:"y,omitempty" tensor:"[2]"`
		Z *tensor.Tensor `json:"z,omitempty"`
	}
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "fields", func(context.Context, in) (int, error) { return 0, nil }, endpoint.Batch(8, time.Millisecond)))
	require.NoError(t, endpoint.Register(r, "whole", func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil },
		endpoint.ArgumentTensor("int64"), endpoint.ResultTensor("float32[]")))
	server, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Registry: r})
	require.NoError(t, err)
	defer server.Close()
	list, err := server.Endpoints(t.Context())
	require.NoError(t, err)
	text, err := json.Marshal(list)
	require.NoError(t, err)
	for _, part := range []string{`"tensor":"float32[-1,3]"`, `"tensor":"[2]"`, `"batch_max":8,"batch_delay":1000000`, `"in_tensor":"int64"`, `"out_tensor":"float32[]"`} {
		require.Contains(t, string(text), part)
	}
	require.Nil(t, list[0].InFields[2].Tensor)

	type notATensor struct {
		X int `tensor:"float32"`
	}
	type noDType struct {
		X *tensor.Tensor `tensor:"float99[1]"`
	}
	require.ErrorContains(t, endpoint.Register(r, "a", func(context.Context, notATensor) (int, error) { return 0, nil }), "but is no tensor")
	require.ErrorContains(t, endpoint.Register(r, "b", func(context.Context, noDType) (int, error) { return 0, nil }), "float99")
	identity := func(_ context.Context, x int) (int, error) { return x, nil }
	require.ErrorContains(t, endpoint.Register(r, "c", identity, endpoint.ArgumentTensor("float32")), "use the tag tensor")
	require.ErrorContains(t, endpoint.Register(r, "d", identity, endpoint.Batch(1, 0)), "batches of 1")
	for _, spec := range []string{"", "float32[", "float32[x]", "[-2]", "float32[1,]"} {
		require.ErrorIs(t, endpoint.Register(r, "e", func(_ context.Context, x *tensor.Tensor) (int, error) { return 0, nil }, endpoint.ArgumentTensor(spec)), endpoint.ErrInvalid, spec)
	}
}
