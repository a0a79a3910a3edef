package compute

import (
	"context"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Function computes one tensor from one tensor. It must be safe for concurrent use.
//
// It can also implement Informer, Setupper, Teardowner, Checker and Placer.
type Function interface {
	// Compute borrows in and returns an owned tensor, which may be an alias of in. ctx ends when the caller leaves.
	Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error)
}

// Func adapts a Go function to Function.
type Func func(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error)

// Compute calls f.
func (f Func) Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	return f(ctx, in)
}

// Informer is a Function that describes itself.
type Informer interface {
	// Info returns the custom_info of GetServiceInfo. The keys "name" and "device" set the service's name and device.
	Info() map[string]string
}

// Setupper is a Function that needs preparation. If Setup fails, no request is computed and the health check reports
// the error.
type Setupper interface {
	// Setup is called once, before the first Compute.
	Setup(ctx context.Context) error
}

// Teardowner is a Function that needs to clean up.
type Teardowner interface {
	// Teardown is called once, after the last Compute has ended.
	Teardown(ctx context.Context) error
}

// Checker is a Function that can be unhealthy.
type Checker interface {
	// Check returns nil if Compute would work, and otherwise the reason in one sentence.
	Check(ctx context.Context) error
}

// Placer is a Function that needs its argument on a specific device.
type Placer interface {
	// Device returns the device. Borrowed.
	Device() driver.Device
}
