//go:build linux

package gpu_test

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct (include/uapi/asm-generic/signal.h; on amd64 and arm64 it begins like this, and the
// mask is 8 bytes there).
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

// sigactions asks the kernel what this process does with each signal. The library's own record is passed by: libcuda
// might not use it.
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
