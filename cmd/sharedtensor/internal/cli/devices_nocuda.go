//go:build nocuda

package cli

import "github.com/sharedtensor/sharedtensor/driver"

// BuiltWithCUDA reports whether this build supports GPUs.
const BuiltWithCUDA = false

var errNoCUDA = &driver.UnsupportedError{Feature: "CUDA", Requires: "a sharedtensor that was built without -tags nocuda"}

// openCUDA always fails in this build.
func openCUDA(int) (driver.Device, error) { return nil, errNoCUDA }

// OpenCUDAUUID always fails in this build.
func OpenCUDAUUID(driver.UUID) (driver.Device, error) { return nil, errNoCUDA }
