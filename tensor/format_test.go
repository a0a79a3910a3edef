package tensor_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestString(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		check := func(want string) func(x *tensor.Tensor, err error) {
			return func(x *tensor.Tensor, err error) {
				t.Helper()
				require.Equal(t, want, closing(t, x, err).String())
			}
		}
		inf, nan := float32(math.Inf(1)), float32(math.NaN())
		check("tensor(3.1416)")(tensor.FromSlice(dev, shape{}, []float32{math.Pi}))
		check("tensor([1., 2., 3.])")(tensor.FromSlice(dev, shape{3}, []float32{1, 2, 3}))
		check("tensor([ 0.5000, -1.2500, 10.0000])")(tensor.FromSlice(dev, shape{3}, []float32{0.5, -1.25, 10}))
		check("tensor([1.0000e-05, 1.0000e+00, 0.0000e+00])")(tensor.FromSlice(dev, shape{3}, []float32{1e-5, 1, 0}))
		check("tensor([1.0000e+09, 1.0000e+09])")(tensor.FromSlice(dev, shape{2}, []float32{1e9, 1e9}))
		check("tensor([1., nan, inf, -inf])")(tensor.FromSlice(dev, shape{4}, []float32{1, nan, inf, -inf}))
		check("tensor([0., 0.])")(tensor.FromSlice(dev, shape{2}, []float32{0, 0}))
		check("tensor([[  1,  20],\n        [300,  -4]])")(tensor.FromSlice(dev, shape{2, 2}, []int64{1, 20, 300, -4}))
		check("tensor([  0, 255], dtype=torch.uint8)")(tensor.FromSlice(dev, shape{2}, []uint8{0, 255}))
		check("tensor([18446744073709551615], dtype=torch.uint64)")(tensor.FromSlice(dev, shape{1}, []uint64{math.MaxUint64}))
		check("tensor([ True, False])")(tensor.FromBools(dev, shape{2}, []bool{true, false}))
		check("tensor([1.5000+2.j, 0.0000-1.j])")(
			tensor.FromSlice(dev, shape{2}, []complex64{1.5 + 2i, -1i}))
		check("tensor([1., 2.], dtype=torch.bfloat16)")(tensor.FromSlice(dev, shape{2}, []tensor.BF16{0x3F80, 0x4000}))
		check("tensor([1.5000, 2.0000], dtype=torch.float16)")(tensor.FromSlice(dev, shape{2}, []tensor.F16{0x3E00, 0x4000}))
		check("tensor([448.,  nan], dtype=torch.float8_e4m3fn)")(tensor.FromSlice(dev, shape{2}, []tensor.F8E4M3FN{0x7E, 0x7F}))
		check("tensor([], dtype=torch.int64)")(tensor.Zeros(dev, tensor.Int64, shape{0}))
		check("tensor([], size=(2, 0))")(tensor.Zeros(dev, tensor.Float32, shape{2, 0}))
		check("tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]], dtype=torch.int32)")(
			counting(t, dev, 2, 2, 2).Alias(), nil)

		x, err := tensor.Zeros(dev, tensor.Float4E2M1FN, shape{2, 2})
		x = closing(t, x, err)
		require.NoError(t, x.FillFrom(bytesReader([]byte{0x71, 0xF2})))
		check("tensor([[ 0.5000,  6.0000],\n        [ 1.0000, -6.0000]], dtype=torch.float4_e2m1fn)")(x.Alias(), nil)
		y, err := x.Transpose(0, 1)
		check("tensor([[ 0.5000,  1.0000],\n        [ 6.0000, -6.0000]], dtype=torch.float4_e2m1fn)")(y, err)
	})
}

func TestStringSummarizes(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		require.Equal(t, "tensor([   0,    1,    2,  ..., 1998, 1999, 2000], dtype=torch.int32)",
			counting(t, dev, 2001).String())
		require.Equal(t, strings.Join([]string{
			"tensor([[    0,     1,     2,  ...,   197,   198,   199],",
			"        [  200,   201,   202,  ...,   397,   398,   399],",
			"        [  400,   401,   402,  ...,   597,   598,   599],",
			"        ...,",
			"        [19400, 19401, 19402,  ..., 19597, 19598, 19599],",
			"        [19600, 19601, 19602,  ..., 19797, 19798, 19799],",
			"        [19800, 19801, 19802,  ..., 19997, 19998, 19999]], dtype=torch.int32)",
		}, "\n"), counting(t, dev, 100, 200).String())
		require.NotContains(t, counting(t, dev, 1000).String(), "...")
		deep := counting(t, dev, 2, 300, 2).String()
		require.Equal(t, 2, strings.Count(deep, "..."), "only the dimension that is long is cut short")
	})
}

func TestStringBreaksLines(t *testing.T) {
	t.Parallel()
	for _, line := range strings.Split(counting(t, openHost(t), 2, 90).String(), "\n") {
		require.LessOrEqual(t, len(line), 80, line)
	}
	require.Equal(t, "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n"+
		"        18, 19], dtype=torch.int32)", counting(t, openHost(t), 20).String())
}

// gpuDevice is a device that reports to be a GPU, to test its output.
type gpuDevice struct{ opaqueDevice }

// Info describes a second GPU.
func (gpuDevice) Info() driver.Info { return driver.Info{Type: driver.CUDA, Index: 1} }

// Alloc allocates memory of this device.
func (d gpuDevice) Alloc(bytes int64) (driver.Memory, error) {
	mem, err := d.Device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return gpuMemory{opaqueMemory{mem, d.opaqueDevice}, d}, nil
}

type gpuMemory struct {
	opaqueMemory
	gpu gpuDevice
}

// Device returns the device.
func (m gpuMemory) Device() driver.Device { return m.gpu }

func TestStringNamesTheDevice(t *testing.T) {
	t.Parallel()
	x, err := tensor.FromSlice(gpuDevice{opaqueDevice{openHost(t)}}, shape{2}, []int8{1, 2})
	require.Equal(t, "tensor([1, 2], device='cuda:1', dtype=torch.int8)", closing(t, x, err).String())
}

// String equals PyTorch's output, see testdata/print.py.
func TestStringIsAsPyTorchPrints(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	f, err := os.Open(filepath.Join("testdata", "print.jsonl"))
	require.NoError(t, err)
	defer f.Close()
	lines, samples := bufio.NewScanner(f), 0
	lines.Buffer(nil, 1<<20)
	for ; lines.Scan(); samples++ {
		var sample struct {
			DType string
			Shape tensor.Shape
			Data  []byte
			Text  string
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &sample))
		dt, err := tensor.ParseDType(sample.DType)
		require.NoError(t, err)
		x, err := tensor.Zeros(dev, dt, sample.Shape)
		require.NoError(t, err)
		require.NoError(t, x.FillFrom(bytes.NewReader(sample.Data)))
		require.Equal(t, sample.Text, x.String(), "line %d", samples+1)
		require.NoError(t, x.Close())
	}
	require.NoError(t, lines.Err())
	require.Equal(t, 600, samples)
}
