package cuda

import (
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// copyFromDevice copies len(p) bytes to host memory and returns when they have arrived. The context must be current.
func copyFromDevice(p []byte, src cu.DevicePtr) error {
	return check("cuMemcpyDtoH", cu.MemcpyDtoH(unsafe.Pointer(unsafe.SliceData(p)), src, uint64(len(p))))
}

// copyToDevice copies p from host memory. The context must be current. It returns when p can be changed, which for
// pageable memory is before the device has the bytes.
func copyToDevice(dst cu.DevicePtr, p []byte) error {
	return check("cuMemcpyHtoD", cu.MemcpyHtoD(dst, unsafe.Pointer(unsafe.SliceData(p)), uint64(len(p))))
}

// queueToDevice queues a copy from pinned memory.
func queueToDevice(dst cu.DevicePtr, p []byte, s cu.Stream) error {
	return check("cuMemcpyHtoDAsync", cu.MemcpyHtoDAsync(dst, unsafe.Pointer(unsafe.SliceData(p)), uint64(len(p)), s))
}

// queueFromDevice queues a copy to pinned memory.
func queueFromDevice(p []byte, src cu.DevicePtr, s cu.Stream) error {
	return check("cuMemcpyDtoHAsync", cu.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(p)), src, uint64(len(p)), s))
}
