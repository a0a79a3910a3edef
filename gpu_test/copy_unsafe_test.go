//go:build linux

package gpu_test

import (
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// copyToDevice is the driver's own copy, without the checks of package cuda.
func copyToDevice(dst cu.DevicePtr, data []byte) cu.Result {
	return cu.MemcpyHtoD(dst, unsafe.Pointer(&data[0]), uint64(len(data)))
}
