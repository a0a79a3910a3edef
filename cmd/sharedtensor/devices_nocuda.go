//go:build nocuda

package main

import "github.com/sharedtensor/sharedtensor/driver"

// builtWithCUDA tells whether this program can open GPUs at all.
const builtWithCUDA = false

var errNoCUDA = &driver.UnsupportedError{Feature: "CUDA", Requires: "a sharedtensor that was built without -tags nocuda"}

// openCUDA fails in this build.
func openCUDA(int) (driver.Device, error) { return nil, errNoCUDA }

// openCUDAUUID fails in this build.
func openCUDAUUID(driver.UUID) (driver.Device, error) { return nil, errNoCUDA }
