// Command kernel runs its own kernel on weights that another process owns: it attaches a model, multiplies each matrix
// in it by a vector of ones, on the GPU and in the owner's memory, and prints the result. No weight is copied.
//
// The kernel is compiled from CUDA C++ with NVRTC, once for each host. Without NVRTC, the program uses PTX of the same kernel.
//
//	sharedtensor serve --device cuda:0 m=model.safetensors
//	go run ./examples/kernel m
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvrtc"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

//go:embed matmul.cu
var source string

//go:embed matmul.ptx
var fallback []byte

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: kernel NAME (the owner's socket is set by SHARED_TENSOR_BASE_PATH)")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(name string) error {
	ctx := context.Background()
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	defer dev.Close()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	defer client.Close()
	handle, err := client.Acquire(ctx, name, endpoint.AcquireOptions{})
	if err != nil {
		return err
	}
	defer handle.Close()
	image, err := compile(ctx, dev)
	if err != nil {
		return err
	}
	code, err := dev.LoadModule(image)
	if err != nil {
		return err
	}
	defer code.Close()
	kernel, err := code.Function("matmul")
	if err != nil {
		return err
	}
	for name, weight := range handle.StateDict().All() {
		if weight.Rank() != 2 || weight.DType() != tensor.Float32 || weight.NumElements() == 0 {
			continue
		}
		rows, err := rowSums(dev, kernel, weight)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("%-24s %-12v row sums %.4f ... %.4f\n", name, weight.Shape(), rows[0], rows[len(rows)-1])
	}
	return nil
}

// compile returns the kernel as PTX for the device.
func compile(ctx context.Context, dev *cuda.Device) ([]byte, error) {
	properties, err := dev.Properties()
	if err != nil {
		return nil, err
	}
	cache, err := jitcache.Open(jitcache.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err) // the kernel is compiled each time
	}
	binary, err := nvrtc.Compile(ctx, "matmul.cu", source, nvrtc.Options{
		Arch:  fmt.Sprintf("compute_%d%d", properties.ComputeMajor, properties.ComputeMinor),
		Cache: cache,
	})
	if errors.Is(err, nvrtc.ErrNoLibrary) {
		fmt.Fprintln(os.Stderr, "NVRTC is not installed: using the PTX in matmul.ptx")
		return fallback, nil
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(os.Stderr, "compiled matmul.cu with", nvrtc.File())
	return binary.Code, nil
}

// rowSums returns the product of the matrix and a vector of ones.
func rowSums(dev *cuda.Device, kernel *cuda.Function, weight *tensor.Tensor) ([]float32, error) {
	rows, columns := weight.Shape()[0], weight.Shape()[1]
	ones := make([]float32, columns)
	for i := range ones {
		ones[i] = 1
	}
	x, err := tensor.FromSlice(dev, tensor.Shape{columns, 1}, ones)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	y, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{rows, 1})
	if err != nil {
		return nil, err
	}
	defer y.Close()
	grid := cuda.LaunchConfig{Grid: cuda.Dim3{Y: uint32(rows+63) / 64}, Block: cuda.Dim3{X: 1, Y: 64}}
	// A tensor is an argument for a pointer to its elements. Its memory is kept until the kernel is done.
	if err := kernel.Launch(grid, weight, x, y, int(rows), 1, int(columns)); err != nil {
		return nil, err
	}
	y.Storage().Touch()       // the kernel changes it
	return tensor.Float32s(y) // waits for the kernel
}
