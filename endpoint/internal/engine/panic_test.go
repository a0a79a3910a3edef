package engine_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// mine is a value whose encoding or decoding panics if it is armed.
type mine struct{ Armed bool }

func (m mine) MarshalCBOR() ([]byte, error) {
	if m.Armed {
		panic("it went off")
	}
	return []byte{0xf6}, nil
}

func (m *mine) UnmarshalCBOR(data []byte) error {
	if data[0] != 0xf6 {
		panic("it went off")
	}
	return nil
}

// binaryMine is a mine with binary encoding.
type binaryMine struct{}

func (*binaryMine) UnmarshalBinary([]byte) error { panic("it went off") }

// loaded is a value with a tensor and a mine behind it.
type loaded struct {
	X    *tensor.Tensor `json:"x,omitempty"`
	Mine mine           `json:"z,omitempty"`
}

// trap triggers a mine in another process: its own encoding is plain.
type trap struct {
	X    *tensor.Tensor `json:"x,omitempty"`
	Mine int            `json:"z"`
}

// badError panics in its Error method.
type badError struct{ text *string }

func (e *badError) Error() string { return *e.text }

func (e *badError) Is(target error) bool { return *e.text == target.Error() }

// ring is a type whose values can contain themselves, without a tensor.
type ring struct {
	Next *ring            `json:"next,omitempty"`
	List []ring           `json:"list,omitempty"`
	By   map[string]*ring `json:"by,omitempty"`
}

type nest []nest

func panickyRegistry(t *testing.T, dev driver.Device) *endpoint.Registry {
	r := endpoint.NewRegistry(endpoint.Cached())
	make := func() *tensor.Tensor {
		x, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{1})
		require.NoError(t, err)
		return x
	}
	ok := func(err error) { require.NoError(t, err) }
	result := func(context.Context, struct{}) (loaded, error) {
		return loaded{X: make(), Mine: mine{Armed: true}}, nil
	}
	ok(endpoint.Register(r, "result", result))
	ok(endpoint.Register(r, "uncached", result, endpoint.NoCache()))
	ok(endpoint.Register(r, "task", result, endpoint.AsTask()))
	ok(endpoint.Register(r, "plain", func(context.Context, struct{}) (mine, error) { return mine{Armed: true}, nil }))
	ok(endpoint.Register(r, "argument", func(context.Context, loaded) (int, error) { return 1, nil }))
	ok(endpoint.Register(r, "binary", func(context.Context, binaryMine) (int, error) { return 1, nil }))
	ok(endpoint.RegisterStream(r, "stream", func(context.Context, struct{}) iter.Seq2[loaded, error] {
		return func(yield func(loaded, error) bool) { yield(loaded{X: make(), Mine: mine{Armed: true}}, nil) }
	}))
	ok(endpoint.RegisterStream(r, "stream of", func(context.Context, loaded) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) { yield(1, nil) }
	}))
	ok(endpoint.Register(r, "error", func(context.Context, struct{}) (int, error) { return 0, new(badError) }))
	ok(endpoint.Register(r, "ring", func(_ context.Context, how string) (ring, error) {
		one := &ring{}
		switch how {
		case "pointer":
			one.Next = one
		case "slice":
			one.List = []ring{{}}
			one.List[0].List = one.List
		case "map":
			one.By = map[string]*ring{"": one}
		case "far":
			one.By = map[string]*ring{"": {Next: &ring{}}}
			one.By[""].Next.Next = one
		}
		return *one, nil
	}))
	ok(endpoint.Register(r, "slices", func(context.Context, struct{}) (nest, error) {
		s := nest{nil}
		s[0] = s
		return s, nil
	}))
	ok(endpoint.Register(r, "any", func(context.Context, struct{}) (any, error) {
		one := &ring{}
		one.Next = one
		return map[string]any{"x": one}, nil
	}))
	ok(endpoint.Register(r, "deep", func(_ context.Context, depth int) (ring, error) {
		var one ring
		for range depth {
			next := one
			one = ring{Next: &next}
		}
		return one, nil
	}))
	return r
}

// The owner and the connection survive types that panic while a peer's data is encoded or decoded.
func TestCallPanicOfValues(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: panickyRegistry(t, dev), Logger: fixture.Discard()})
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer c.Close()
	x, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{1})
	require.NoError(t, err)
	defer x.Close()
	ctx := context.Background()
	for name, caller := range map[string]endpoint.Caller{"client": c, "server": s} {
		t.Run(name, func(t *testing.T) {
			armed := trap{X: x, Mine: 7}
			for what, do := range map[string]func() error{
				"result":   func() error { return caller.Call(ctx, "result", nil, nil) },
				"uncached": func() error { return caller.Call(ctx, "uncached", nil, nil) },
				"task":     func() error { return caller.Call(ctx, "task", nil, nil) },
				"plain":    func() error { return caller.Call(ctx, "plain", nil, nil) },
				"argument": func() error { return caller.Call(ctx, "argument", armed, nil) },
				"binary":   func() error { return caller.Call(ctx, "binary", []byte{1}, nil) },
				"stream": func() error {
					for _, err := range endpoint.Stream[loaded](ctx, caller, "stream", nil) {
						if err != nil {
							return err
						}
					}
					return nil
				},
				"stream of": func() error {
					for _, err := range endpoint.Stream[int](ctx, caller, "stream of", armed) {
						if err != nil {
							return err
						}
					}
					return nil
				},
				"argument of a task": func() error {
					_, err := caller.Submit(ctx, "argument", armed)
					return err
				},
				"argument to forget": func() error {
					_, err := caller.InvalidateCall(ctx, "argument", armed)
					return err
				},
			} {
				err := do()
				require.ErrorContains(t, err, "panic: it went off", what)
				require.ErrorContains(t, err, "endpoint \"", what)
			}
			require.ErrorContains(t, caller.Call(ctx, "error", nil, nil), `endpoint "error"`)
			require.NoError(t, caller.Call(ctx, "argument", trap{X: x}.disarmed(), nil))
		})
	}
}

func (t trap) disarmed() any {
	return struct {
		X *tensor.Tensor `json:"x"`
	}{t.X}
}

// Results and arguments that contain themselves are refused.
func TestCallCyclicValues(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: panickyRegistry(t, dev), Logger: fixture.Discard()})
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	ctx := context.Background()
	self := &ring{}
	self.Next = self
	for name, caller := range map[string]endpoint.Caller{"client": c, "server": s} {
		t.Run(name, func(t *testing.T) {
			for _, how := range []string{"pointer", "slice", "map", "far"} {
				require.ErrorContains(t, caller.Call(ctx, "ring", how, nil), "cyclic or nested too deeply", how)
			}
			require.ErrorContains(t, caller.Call(ctx, "slices", nil, nil), "cyclic or nested too deeply")
			require.ErrorContains(t, caller.Call(ctx, "any", nil, nil), "cyclic or nested too deeply")
			require.ErrorContains(t, caller.Call(ctx, "deep", 100_000, nil), "cyclic or nested too deeply")
			require.ErrorContains(t, caller.Call(ctx, "ring", self, nil), "cyclic or nested too deeply", "an argument")
			got, err := endpoint.Call[ring](ctx, caller, "deep", 60)
			require.NoError(t, err)
			depth := 0
			for at := &got; at.Next != nil; at = at.Next {
				depth++
			}
			require.Equal(t, 60, depth)
		})
	}
	require.False(t, errors.Is(c.Call(ctx, "deep", 3, nil), endpoint.ErrPanic))
}
