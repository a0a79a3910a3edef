package tensor_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// openHost returns the host device, closed at the end of the test.
func openHost(t testing.TB) driver.Device {
	t.Helper()
	dev, err := host.Open()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// opaqueDevice is the host device without direct access to its memory, like a GPU.
type opaqueDevice struct{ driver.Device }

// Alloc hides that the host's memory is Mapped.
func (d opaqueDevice) Alloc(bytes int64) (driver.Memory, error) {
	mem, err := d.Device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return opaqueMemory{mem, d}, nil
}

type opaqueMemory struct {
	driver.Memory
	dev driver.Device
}

// Device returns the opaque device.
func (m opaqueMemory) Device() driver.Device { return m.dev }

// devices runs a test on memory with and without direct access.
func devices(t *testing.T, test func(t *testing.T, dev driver.Device)) {
	t.Run("mapped", func(t *testing.T) { test(t, openHost(t)) })
	t.Run("opaque", func(t *testing.T) { test(t, opaqueDevice{openHost(t)}) })
}

// closing closes a tensor at the end of the test.
func closing(t testing.TB, x *tensor.Tensor, err error) *tensor.Tensor {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, x.Close()) })
	return x
}

// counting returns a tensor of ascending numbers from 0.
func counting(t testing.TB, dev driver.Device, shape ...int64) *tensor.Tensor {
	t.Helper()
	n, err := tensor.Shape(shape).NumElements()
	require.NoError(t, err)
	values := make([]int32, n)
	for i := range values {
		values[i] = int32(i)
	}
	x, err := tensor.FromSlice(dev, shape, values)
	return closing(t, x, err)
}

// ints reads an Int32 tensor through its row-major bytes.
func ints(t testing.TB, x *tensor.Tensor) []int32 {
	t.Helper()
	raw, err := x.ReadBytes()
	require.NoError(t, err)
	out := make([]int32, len(raw)/4)
	for i := range out {
		out[i] = int32(raw[4*i]) | int32(raw[4*i+1])<<8 | int32(raw[4*i+2])<<16 | int32(raw[4*i+3])<<24
	}
	return out
}

// fillFloat32s converts values to the elements of x.
func fillFloat32s(x *tensor.Tensor, values []float32) error {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return x.FillFromAs(bytes.NewReader(raw), tensor.Float32)
}
