package tensor_test

import (
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestUnbindVisitsEachIndex(t *testing.T) {
	drivertest.Leaks(t)
	devices(t, func(t *testing.T, dev driver.Device) {
		x, err := tensor.FromSlice(dev, shape{2, 3}, []int32{0, 1, 2, 3, 4, 5})
		x = closing(t, x, err)
		for dim, want := range map[int][][]float32{0: {{0, 1, 2}, {3, 4, 5}}, -1: {{0, 3}, {1, 4}, {2, 5}}} {
			var got [][]float32
			var last *tensor.Tensor
			for row, err := range x.Unbind(dim) {
				require.NoError(t, err)
				values, err := tensor.Float32s(row)
				require.NoError(t, err)
				got = append(got, values)
				last = row
			}
			require.Equal(t, want, got)
			require.False(t, last.Closed(), "a view outlives the loop")
		}
		for range x.Unbind(0) {
			break
		}
		for _, err := range x.Unbind(2) {
			require.ErrorIs(t, err, tensor.ErrIndex)
		}
	})
}

func TestElementsAreInRowMajorOrder(t *testing.T) {
	drivertest.Leaks(t)
	devices(t, func(t *testing.T, dev driver.Device) {
		const n = 100_000 // more than one piece
		values := make([]int32, n)
		for i := range values {
			values[i] = int32(i)
		}
		x, err := tensor.FromSlice(dev, shape{n / 4, 4}, values)
		x = closing(t, x, err)
		turned, err := x.Transpose(0, 1)
		turned = closing(t, turned, err)
		for _, c := range []struct {
			of   *tensor.Tensor
			want func(i int32) int32
		}{
			{x, func(i int32) int32 { return i }},
			{turned, func(i int32) int32 { return i%(n/4)*4 + i/(n/4) }},
		} {
			i := int32(0)
			for v, err := range tensor.Elements[int32](c.of) {
				if err != nil || v != c.want(i) {
					require.Fail(t, "another element", "element %d is %d, %v", i, v, err)
				}
				i++
			}
			require.Equal(t, int32(n), i)
		}
		for range tensor.Elements[int32](x) {
			break
		}
		for _, err := range tensor.Elements[float32](x) {
			require.ErrorIs(t, err, tensor.ErrDType)
		}
		own := x.Alias()
		i := 0
		for v, err := range tensor.Elements[int32](own) { // closed during the iteration
			if i++; err != nil {
				require.ErrorIs(t, err, os.ErrClosed)
				require.Less(t, i, n)
				return
			}
			if v == 0 {
				require.NoError(t, own.Close())
			}
		}
		require.Fail(t, "nobody noticed that it was closed")
	})
}

func ExampleElements() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	x, err := tensor.Arange(dev, tensor.Float32, 0, 3, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	for v, err := range tensor.Elements[float32](x) {
		fmt.Println(v, err)
	}
	// Output:
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
}

func ExampleTensor_Unbind() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	x, err := tensor.FromSlice(dev, tensor.Shape{2, 2}, []int64{1, 2, 3, 4})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	for row, err := range x.Unbind(0) {
		fmt.Println(row, err)
	}
	// Output:
	// tensor([1, 2]) <nil>
	// tensor([3, 4]) <nil>
}
