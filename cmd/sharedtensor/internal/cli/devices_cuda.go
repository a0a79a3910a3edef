//go:build !nocuda

package cli

import (
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

// BuiltWithCUDA reports whether this build supports GPUs.
const BuiltWithCUDA = true

// openCUDA opens a GPU by its ordinal in this process.
func openCUDA(index int) (driver.Device, error) {
	dev, err := cuda.Open(index)
	if err != nil {
		return nil, err // a nil interface
	}
	return dev, nil
}

// OpenCUDAUUID opens a GPU by its UUID, which is the same in every process.
func OpenCUDAUUID(uuid driver.UUID) (driver.Device, error) {
	dev, err := cuda.OpenUUID(uuid)
	if err != nil {
		return nil, err
	}
	return dev, nil
}
