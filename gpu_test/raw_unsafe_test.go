//go:build linux

package gpu_test

import (
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// rawExport returns a descriptor as the driver exports it, without the changes of package cuda. The caller owns it.
func rawExport(dev *cuda.Device) (int, error) {
	fd := int32(-1)
	err := dev.Do(func() error {
		prop := cu.MemAllocationProp{
			Type:                 cu.MEM_ALLOCATION_TYPE_PINNED,
			RequestedHandleTypes: cu.MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
			Location:             cu.DeviceLocation(dev.Handle()),
		}
		var h cu.MemGenericAllocationHandle
		if err := cu.MemCreate(&h, uint64(dev.Info().Granularity), &prop, 0).Err(); err != nil {
			return err
		}
		defer cu.MemRelease(h)
		return cu.MemExportToShareableHandle(unsafe.Pointer(&fd), h, cu.MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0).Err()
	})
	return int(fd), err
}
