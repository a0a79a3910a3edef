//go:build linux

package gpu_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// models returns paths of safetensors files: a generated model and the real models in the test data.
func models(tb testing.TB) []string {
	tb.Helper()
	made := filepath.Join(tb.TempDir(), "synthetic.safetensors")
	require.NoError(tb, module.SynthesizeFile(made, module.Synthetic{Tensors: 33, Bytes: 5 << 20, Seed: 9}))
	paths := []string{made}
	for _, dir := range []string{os.Getenv("SHAREDTENSOR_TESTDATA"), filepath.Join("..", "..", "shared", "data"), "testdata"} {
		real := filepath.Join(dir, "silero_vad_16k.safetensors")
		if _, err := os.Stat(real); dir != "" && err == nil {
			return append(paths, real)
		}
	}
	tb.Log("the real model is not here: set SHAREDTENSOR_TESTDATA")
	return paths
}

// Loading, digesting and saving a model on the GPU gives the same bytes as on the host.
func TestModelOnGPU(t *testing.T) {
	dev := openDevice(t)
	hostDevice, err := host.Open()
	keep(t, hostDevice, err)
	ctx := context.Background()
	for _, path := range models(t) {
		want, err := module.Load(ctx, hostDevice, path, module.LoadOptions{})
		keep(t, want, err)
		got, err := module.Load(ctx, dev, path, module.LoadOptions{})
		keep(t, got, err)
		require.Len(t, got.Storages(), 1, "one slab")
		wantDigests, err := module.Digests(ctx, want, 0)
		require.NoError(t, err)
		gotDigests, err := module.Digests(ctx, got, 0)
		require.NoError(t, err)
		require.Equal(t, wantDigests, gotDigests, path)

		saved := filepath.Join(t.TempDir(), "saved.safetensors")
		require.NoError(t, module.Save(ctx, saved, got, module.SaveOptions{}))
		again, err := module.Load(ctx, hostDevice, saved, module.LoadOptions{})
		keep(t, again, err)
		againDigests, err := module.Digests(ctx, again, 0)
		require.NoError(t, err)
		require.Equal(t, wantDigests, againDigests, path)
	}
}

// Views of GPU memory read the same elements as the same views of host memory.
func TestViewsOnGPU(t *testing.T) {
	hostDevice, err := host.Open()
	keep(t, hostDevice, err)
	views := func(dev driver.Device) map[string]*tensor.Tensor {
		x, err := tensor.FromSlice(dev, tensor.Shape{6, 7, 5}, noise(6*7*5, 21))
		keep(t, x, err)
		all := map[string]*tensor.Tensor{"whole": x}
		var err2 error
		all["transposed"], err = x.Transpose(0, 2)
		all["part"], err2 = x.Narrow(1, 2, 3)
		require.NoError(t, err)
		require.NoError(t, err2)
		all["row"], err = all["transposed"].Select(1, 4)
		all["bits"], err2 = x.View(tensor.Uint16)
		require.NoError(t, err)
		require.NoError(t, err2)
		return all
	}
	dev := openDevice(t)
	on := views(dev)
	for name, want := range views(hostDevice) {
		var x, y bytes.Buffer
		_, err := want.WriteTo(&x)
		require.NoError(t, err)
		_, err = on[name].WriteTo(&y)
		require.NoError(t, err)
		require.Equal(t, x.Bytes(), y.Bytes(), name)

		// Copies from the host into a view of GPU memory, and back, keep the elements.
		target, err := tensor.Zeros(dev, want.DType(), want.Shape())
		keep(t, target, err)
		require.NoError(t, target.CopyFrom(want))
		back, err := tensor.Zeros(hostDevice, want.DType(), want.Shape())
		keep(t, back, err)
		require.NoError(t, back.CopyFrom(target))
		y.Reset()
		_, err = back.WriteTo(&y)
		require.NoError(t, err)
		require.Equal(t, x.Bytes(), y.Bytes(), name)
	}
}
