package tensor_test

import (
	"fmt"
	"log"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A view shares the bytes of the tensor it was made from.
func Example() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	weights, err := tensor.FromSlice(dev, tensor.Shape{2, 3}, []float32{1, 2, 3, 4, 5, 6.5})
	if err != nil {
		log.Fatal(err)
	}
	defer weights.Close()
	row, err := weights.Select(0, 1)
	if err != nil {
		log.Fatal(err)
	}

	values, err := tensor.Data[float32](row)
	if err != nil {
		log.Fatal(err)
	}
	values[0] = -4
	fmt.Println(weights)
	// Output:
	// tensor([[ 1.0000,  2.0000,  3.0000],
	//         [-4.0000,  5.0000,  6.5000]])
}

func ExampleTensor_To() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	x, err := tensor.FromSlice(dev, tensor.Shape{3}, []float32{1, 2.5, 1000})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	half, err := x.To(nil, tensor.BFloat16)
	if err != nil {
		log.Fatal(err)
	}
	defer half.Close()
	fmt.Println(half)
	// Output: tensor([   1.0000,    2.5000, 1000.0000], dtype=torch.bfloat16)
}

func ExampleArange() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	x, err := tensor.Arange(dev, tensor.Int64, 0, 5, 2)
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	fmt.Println(x)
	// Output: tensor([0, 2, 4])
}
