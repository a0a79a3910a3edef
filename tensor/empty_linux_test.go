package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// usedMemory is a device whose uninitialized memory holds previous data.
type usedMemory struct {
	driver.Device
	asked int
	err   error
}

func (d *usedMemory) AllocUninitialized(bytes int64) (driver.Memory, error) {
	d.asked++
	if d.err != nil {
		return nil, d.err
	}
	mem, err := d.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	data := mem.(driver.Mapped).Data()
	for i := range data {
		data[i] = 0xAA
	}
	return mem, nil
}

func TestEmpty(t *testing.T) {
	drivertest.Leaks(t)
	plain := openHost(t)
	used := &usedMemory{Device: plain}
	for _, c := range []struct {
		name string
		make func(driver.Device, tensor.DType, tensor.Shape) (*tensor.Tensor, error)
		on   driver.Device
		want uint8
	}{
		{"empty, of a device that can", tensor.Empty, used, 0xAA},
		{"empty, of one that cannot", tensor.Empty, plain, 0},
		{"zeros, of a device that can", tensor.Zeros, used, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := c.make(c.on, tensor.Uint8, tensor.Shape{3, 5})
			require.NoError(t, err)
			defer x.Close()
			require.Equal(t, tensor.Shape{3, 5}, x.Shape())
			require.True(t, x.Contiguous())
			data, err := tensor.Data[uint8](x)
			require.NoError(t, err)
			require.Len(t, data, 15)
			for _, b := range data {
				require.Equal(t, c.want, b)
			}
			require.EqualValues(t, 1, x.Storage().Refs(), "its own")
		})
	}
	require.Equal(t, 1, used.asked)
	_, err := tensor.Empty(used, tensor.Uint8, tensor.Shape{-1})
	require.ErrorIs(t, err, tensor.ErrShape)
	_, err = tensor.Empty(used, tensor.DType(200), tensor.Shape{1})
	require.ErrorIs(t, err, tensor.ErrDType)
	require.Equal(t, 1, used.asked, "nothing is asked for that makes no sense")
	used.err = driver.ErrOutOfMemory
	_, err = tensor.Empty(used, tensor.Uint8, tensor.Shape{1})
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
}
