package demonet

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func openHost(t testing.TB) driver.Device {
	dev, err := host.Open()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// small returns a model of about 1 MiB on dev.
func small(t testing.TB, dev driver.Device) *module.StateDict {
	c, err := ConfigFor(1 << 20)
	require.NoError(t, err)
	sd, err := Synthesize(context.Background(), dev, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sd.Close()) })
	return sd
}

func TestConfigForSize(t *testing.T) {
	for _, bytes := range []int64{1 << 20, 5 << 20, 8 << 20, DefaultBytes, 100e6, 1 << 30, 7 << 30, 100 << 30} {
		c, err := ConfigFor(bytes)
		require.NoError(t, err)
		require.NoError(t, c.valid())
		require.InDelta(t, bytes, c.Bytes(), 16<<10, "%+v", c)
	}
	c, err := ConfigFor(1)
	require.NoError(t, err)
	require.Positive(t, c.Layers)
	for _, bytes := range []int64{0, -1, maxBytes + 1} {
		_, err := ConfigFor(bytes)
		require.Error(t, err)
	}
}

func TestSynthesizeDeterministic(t *testing.T) {
	dev := openHost(t)
	one, two := small(t, dev), small(t, dev)
	require.Len(t, one.Storages(), 1)
	require.Contains(t, one.Aliases(), []string{embedName, headName})

	a, err := module.Digests(context.Background(), one, 1)
	require.NoError(t, err)
	b, err := module.Digests(context.Background(), two, 1)
	require.NoError(t, err)
	require.Equal(t, a, b)
	require.NotEqual(t, a["layers.0.mlp.up.weight"], a["layers.0.mlp.down.weight"])
}

func TestSynthesizeCancelled(t *testing.T) {
	dev := openHost(t)
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(gone)
	c, err := ConfigFor(1 << 20)
	require.NoError(t, err)
	sd, err := Synthesize(ctx, dev, c)
	require.ErrorIs(t, err, gone)
	require.Nil(t, sd)
	_, err = Synthesize(context.Background(), dev, Config{Vocab: 1, Dim: 65, Hidden: 1, Layers: 1})
	require.ErrorIs(t, err, ErrWeights)
}

func TestRun(t *testing.T) {
	sd := small(t, openHost(t))
	n, err := New(sd)
	require.NoError(t, err)
	first, err := n.Run([]int{1, 2, 3})
	require.NoError(t, err)
	require.Len(t, first, n.Config().Vocab)
	for _, v := range first {
		require.Equal(t, v, v, "not a number")
	}

	longer, err := n.Run([]int{3, 1, 2, 3})
	require.NoError(t, err)
	require.NotEqual(t, first, longer, "earlier tokens must count")
	again, err := n.Run([]int{1, 2, 3})
	require.NoError(t, err)
	require.Equal(t, first, again, "a run must not see the one before")

	for _, tokens := range [][]int{nil, {-1}, {n.Config().Vocab}, make([]int, MaxTokens+1)} {
		_, err := n.Run(tokens)
		require.Error(t, err)
	}
}

func TestNewConfigFromShapes(t *testing.T) {
	sd := small(t, openHost(t))
	want, err := ConfigFor(1 << 20)
	require.NoError(t, err)
	n, err := New(sd)
	require.NoError(t, err)
	require.Equal(t, want, n.Config())
}

func TestNewRefusesOtherModels(t *testing.T) {
	dev := openHost(t)
	for name, change := range map[string]func(map[string]*tensor.Tensor){
		"empty":         func(m map[string]*tensor.Tensor) { clear(m) },
		"missing layer": func(m map[string]*tensor.Tensor) { delete(m, "layers.0.mlp.up.weight") },
		"missing norm":  func(m map[string]*tensor.Tensor) { delete(m, normName) },
		"shape":         func(m map[string]*tensor.Tensor) { m[normName] = empty(t, dev, tensor.Float32, 7) },
		"rank":          func(m map[string]*tensor.Tensor) { m[embedName] = empty(t, dev, tensor.Float32, 64) },
		"dtype":         func(m map[string]*tensor.Tensor) { m[normName] = empty(t, dev, tensor.Int32, 128) },
		"odd width":     func(m map[string]*tensor.Tensor) { m[embedName] = empty(t, dev, tensor.Float32, 256, 65) },
	} {
		t.Run(name, func(t *testing.T) {
			changed := map[string]*tensor.Tensor{}
			for name, t := range small(t, dev).All() {
				changed[name] = t.Alias()
			}
			kept := map[string]*tensor.Tensor{}
			for name, t := range changed {
				kept[name] = t
			}
			change(changed)
			sd := module.NewStateDict()
			defer sd.Close()
			for name, t := range kept {
				if changed[name] != t {
					_ = t.Close()
				}
			}
			for name, tt := range changed {
				require.NoError(t, sd.Set(name, tt))
			}
			_, err := New(sd)
			require.ErrorIs(t, err, ErrWeights)
		})
	}
}

func empty(t testing.TB, dev driver.Device, dt tensor.DType, dims ...int64) *tensor.Tensor {
	e, err := tensor.Zeros(dev, dt, dims)
	require.NoError(t, err)
	return e
}

func TestEvaluateAgreesAcrossCopies(t *testing.T) {
	dev := openHost(t)
	sd := small(t, dev)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, module.Save(context.Background(), path, sd, module.SaveOptions{}))
	loaded, err := module.Load(context.Background(), dev, path, module.LoadOptions{})
	require.NoError(t, err)
	defer loaded.Close()
	require.Equal(t, sd.Aliases(), loaded.Aliases(), "ties survive the file")

	a, err := Evaluate(context.Background(), sd)
	require.NoError(t, err)
	b, err := Evaluate(context.Background(), loaded)
	require.NoError(t, err)
	require.Equal(t, a, b)
	require.Equal(t, "transformer", a.Network)
	require.NotZero(t, a.Checksum)
}

func TestPassSeesEveryElement(t *testing.T) {
	dev := openHost(t)
	for _, dt := range tensor.DTypes() {
		t.Run(dt.String(), func(t *testing.T) {
			x := empty(t, dev, dt, 4, 6)
			sd := module.NewStateDict()
			defer sd.Close()
			require.NoError(t, sd.Set("x", x))
			seen := map[uint64]int{}
			for i := range int(x.Bytes()) {
				require.NoError(t, x.Zero())
				_, err := x.Storage().Memory().WriteAt([]byte{0x34}, int64(i))
				require.NoError(t, err)
				r, err := Evaluate(context.Background(), sd)
				require.NoError(t, err)
				require.Equal(t, "pass", r.Network)
				require.NotContains(t, seen, r.Checksum)
				seen[r.Checksum] = i
			}
		})
	}
}

func TestPassPiecesMatchPassInPlace(t *testing.T) {
	dev := openHost(t)
	for name, shape := range map[string]tensor.Shape{
		"scalar": {}, "empty": {0, 3}, "long row": {1, maxWidth + 5}, "several pieces": {3, 700, 1001},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := shape.NumElements()
			require.NoError(t, err)
			g := generator{state: 1, scale: 1}
			single, half := make([]float32, n), make([]tensor.BF16, n)
			for i := range single {
				half[i] = tensor.NewBF16(g.next())
				single[i] = half[i].Float32()
			}
			a, err := tensor.FromSlice(dev, shape, single)
			require.NoError(t, err)
			b, err := tensor.FromSlice(dev, shape, half)
			require.NoError(t, err)
			one, two := pass(t, a), pass(t, b)
			require.Equal(t, one.Checksum, two.Checksum)
			require.Equal(t, one.Value, two.Value)
		})
	}
}

func TestPassViews(t *testing.T) {
	dev := openHost(t)
	base, err := tensor.FromSlice(dev, tensor.Shape{2, 3}, []float32{1, 2, 3, 4, 5, 6})
	require.NoError(t, err)
	turned, err := base.Transpose(0, 1)
	require.NoError(t, err)
	require.NoError(t, base.Close())
	same, err := tensor.FromSlice(dev, tensor.Shape{3, 2}, []float32{1, 4, 2, 5, 3, 6})
	require.NoError(t, err)
	require.Equal(t, pass(t, same), pass(t, turned))
}

// pass runs Pass over one tensor and closes it.
func pass(t *testing.T, x *tensor.Tensor) Result {
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("x", x))
	defer sd.Close()
	r, err := Pass(context.Background(), sd)
	require.NoError(t, err)
	return r
}

func TestPassStops(t *testing.T) {
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(gone)
	_, err := Evaluate(ctx, small(t, openHost(t)))
	require.ErrorIs(t, err, gone)
	_, err = Pass(ctx, small(t, openHost(t)))
	require.ErrorIs(t, err, gone)
}

func BenchmarkRun(b *testing.B) {
	dev := openHost(b)
	c, err := ConfigFor(DefaultBytes)
	require.NoError(b, err)
	sd, err := Synthesize(context.Background(), dev, c)
	require.NoError(b, err)
	defer sd.Close()
	b.SetBytes(sd.Bytes())
	for b.Loop() {
		_, err := Evaluate(context.Background(), sd)
		require.NoError(b, err)
	}
}

func BenchmarkSynthesize(b *testing.B) {
	dev := openHost(b)
	c, err := ConfigFor(DefaultBytes)
	require.NoError(b, err)
	b.SetBytes(c.Bytes())
	for b.Loop() {
		sd, err := Synthesize(context.Background(), dev, c)
		require.NoError(b, err)
		require.NoError(b, sd.Close())
	}
}
