package tensor_test

import (
	"fmt"
	"log"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestCatAndSplit(t *testing.T) {
	drivertest.Leaks(t)
	devices(t, func(t *testing.T, dev driver.Device) {
		for _, dim := range []int{0, 1, -1} {
			x, err := tensor.FromSlice(dev, shape{5, 3}, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
			x = closing(t, x, err)
			parts, err := x.Split(dim, 2)
			require.NoError(t, err)
			require.Len(t, parts, map[int]int{0: 3, 1: 2, -1: 2}[dim])
			back, err := tensor.Cat(nil, dim, parts...)
			back = closing(t, back, err)
			equal, err := back.Equal(x)
			require.NoError(t, err)
			require.True(t, equal, "%v", back)
			for _, p := range parts {
				require.NoError(t, p.Close())
			}
		}
		x, err := tensor.Zeros(dev, tensor.Int8, shape{0, 2})
		x = closing(t, x, err)
		parts, err := x.Split(0, 4)
		require.NoError(t, err)
		require.Len(t, parts, 1)
		require.NoError(t, parts[0].Close())
		_, err = x.Split(0, 0)
		require.ErrorIs(t, err, tensor.ErrShape)
		y, err := tensor.Zeros(dev, tensor.Int8, shape{1, 3})
		y = closing(t, y, err)
		_, err = tensor.Cat(nil, 0, x, y)
		require.ErrorIs(t, err, tensor.ErrShape)
		_, err = tensor.Cat(nil, 0)
		require.ErrorIs(t, err, tensor.ErrShape)
		z, err := tensor.Zeros(dev, tensor.Int16, shape{1, 2})
		z = closing(t, z, err)
		_, err = tensor.Cat(nil, 0, x, z)
		require.ErrorIs(t, err, tensor.ErrDType)
	})
}

func TestCopyFromRepeats(t *testing.T) {
	drivertest.Leaks(t)
	devices(t, func(t *testing.T, dev driver.Device) {
		x, err := tensor.Zeros(dev, tensor.Int32, shape{2, 3})
		x = closing(t, x, err)
		row, err := tensor.FromSlice(dev, shape{3}, []int32{1, 2, 3})
		row = closing(t, row, err)
		require.NoError(t, x.CopyFrom(row))
		require.Equal(t, "tensor([[1, 2, 3],\n        [1, 2, 3]], dtype=torch.int32)", x.String())
		column, err := tensor.FromSlice(dev, shape{2, 1}, []int32{7, 8})
		column = closing(t, column, err)
		require.NoError(t, x.CopyFrom(column))
		require.Equal(t, "tensor([[7, 7, 7],\n        [8, 8, 8]], dtype=torch.int32)", x.String())
		require.ErrorIs(t, row.CopyFrom(x), tensor.ErrShape)
		short, err := row.Narrow(0, 0, 2)
		short = closing(t, short, err)
		require.ErrorIs(t, x.CopyFrom(short), tensor.ErrShape)
	})
}

func ExampleCat() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	x, err := tensor.Arange(dev, tensor.Int32, 0, 3, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	twice, err := tensor.Cat(nil, 0, x, x)
	if err != nil {
		log.Fatal(err)
	}
	defer twice.Close()
	fmt.Println(twice)
	// Output: tensor([0, 1, 2, 0, 1, 2], dtype=torch.int32)
}
