package compute

import (
	"context"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Function has one tensor in and one tensor out. It is called by several goroutines at a time.
//
// It may also be an Informer, a Setupper, a Teardowner, a Checker and a Placer.
type Function interface {
	// Compute borrows in and returns an owned tensor, which may be a clone of in. ctx ends when the caller gives up.
	Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error)
}

// Func is a Go function as a Function.
type Func func(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error)

// Compute calls f.
func (f Func) Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	return f(ctx, in)
}

// Informer is a Function that describes itself.
type Informer interface {
	// Info returns what GetServiceInfo shows in custom_info. "name" and "device" have a meaning there.
	Info() map[string]string
}

// Setupper is a Function that needs preparation. Where that fails nothing is computed, and health says why.
type Setupper interface {
	// Setup is called once, before the first Compute.
	Setup(ctx context.Context) error
}

// Teardowner is a Function that has to clean up.
type Teardowner interface {
	// Teardown is called once, when the last Compute has ended.
	Teardown(ctx context.Context) error
}

// Checker is a Function that can be unhealthy.
type Checker interface {
	// Check returns nil where Compute would work, and else why not, in one sentence.
	Check(ctx context.Context) error
}

// Placer is a Function that wants its argument on a device.
type Placer interface {
	// Device is the device, borrowed.
	Device() driver.Device
}
