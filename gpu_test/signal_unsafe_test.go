//go:build linux

package gpu_test

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
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
