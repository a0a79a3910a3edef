//go:build !nocuda

package cli

import (
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

// BuiltWithCUDA reports whether this program can open GPUs at all.
const BuiltWithCUDA = true

// openCUDA opens a GPU by its ordinal in this process.
func openCUDA(index int) (driver.Device, error) {
	dev, err := cuda.Open(index)
	if err != nil {
		return nil, err // an interface that is nil
	}
	return dev, nil
}

// OpenCUDAUUID opens a GPU by the name that it has in every process.
func OpenCUDAUUID(uuid driver.UUID) (driver.Device, error) {
	dev, err := cuda.OpenUUID(uuid)
	if err != nil {
		return nil, err
	}
	return dev, nil
}
