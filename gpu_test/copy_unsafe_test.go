//go:build linux

package gpu_test

import (
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// copyToDevice copies data with the driver's function, without the checks of package cuda.
func copyToDevice(dst cu.DevicePtr, data []byte) cu.Result {
	return cu.MemcpyHtoD(dst, unsafe.Pointer(&data[0]), uint64(len(data)))
}
