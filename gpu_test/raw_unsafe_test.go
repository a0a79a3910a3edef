//go:build linux

package gpu_test

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// sigaction is the kernel's struct (include/uapi/asm-generic/signal.h). amd64 and arm64 share these first fields, with
// a mask of 8 bytes.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	signals    = 64
	saOnStack  = 0x08000000
	sigDefault = 0
	sigIgnore  = 1
)

// sigactions reads the action of each signal from the kernel. It bypasses libc, because libcuda may not use libc to set
// them.
func sigactions() ([signals + 1]sigaction, error) {
	var all [signals + 1]sigaction
	for n := 1; n <= signals; n++ {
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), 0, uintptr(unsafe.Pointer(&all[n])), 8, 0, 0)
		if errno != 0 {
			return all, fmt.Errorf("rt_sigaction %d: %w", n, errno)
		}
	}
	return all, nil
}

// copyToDevice copies data with the driver's function, without the checks of package cuda.
func copyToDevice(dst cu.DevicePtr, data []byte) cu.Result {
	return cu.MemcpyHtoD(dst, unsafe.Pointer(&data[0]), uint64(len(data)))
}

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
