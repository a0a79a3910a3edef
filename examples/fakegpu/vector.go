// Package fakegpu is an example of a module outside of sharedtensor that uses CUDA, and tests it without a GPU
// (driver/cuda/cudatest).
package fakegpu

import (
	_ "embed"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

//go:embed vector.ptx
var ptx []byte

// Adder adds vectors on a device.
type Adder struct {
	dev    *cuda.Device
	module *cuda.Module
	stream *cuda.Stream
	kernel *cuda.Kernel[arguments]
}

// arguments are those of the kernel add: out[i] = x[i] + y[i].
type arguments struct {
	X, Y, Out *cuda.Buffer[float32]
	N         int
}

// NewAdder returns an adder for the device, which it borrows. The caller closes the adder.
func NewAdder(dev *cuda.Device) (_ *Adder, err error) {
	a := &Adder{dev: dev}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.module, err = dev.LoadModule(ptx); err != nil {
		return nil, err
	}
	f, err := a.module.Function("add")
	if err != nil {
		return nil, err
	}
	if a.kernel, err = cuda.KernelOf[arguments](f); err != nil {
		return nil, err
	}
	a.stream, err = dev.NewStream(cuda.StreamOptions{})
	return a, err
}

// Add returns the sum of two vectors of the same length, at least 1.
func (a *Adder) Add(x, y []float32) (sum []float32, err error) {
	if len(x) != len(y) {
		return nil, fmt.Errorf("vectors of %d and %d values", len(x), len(y))
	}
	var buffers [3]*cuda.Buffer[float32]
	for i := range buffers {
		if buffers[i], err = cuda.NewBuffer[float32](a.dev, len(x)); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, buffers[i].Close()) }()
	}
	if err := errors.Join(buffers[0].Write(x, 0), buffers[1].Write(y, 0)); err != nil {
		return nil, err
	}
	cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: uint32(len(x)+255) / 256}, Block: cuda.Dim3{X: 256}, Stream: a.stream}
	if err := a.kernel.Launch(cfg, arguments{X: buffers[0], Y: buffers[1], Out: buffers[2], N: len(x)}); err != nil {
		return nil, err
	}
	if err := a.stream.Synchronize(); err != nil {
		return nil, err
	}
	return buffers[2].Values()
}

// Close releases the adder's resources.
func (a *Adder) Close() error {
	var errs []error
	if a.stream != nil {
		errs = append(errs, a.stream.Close())
	}
	if a.module != nil {
		errs = append(errs, a.module.Close())
	}
	return errors.Join(errs...)
}
