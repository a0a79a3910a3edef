//go:build linux

package gpu_test

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// inNamespaces puts an agent into new namespaces (CLONE_NEW... or'ed together). Who is not root gets a user namespace
// too.
func inNamespaces(flags uintptr) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		attr := &syscall.SysProcAttr{Cloneflags: flags}
		if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
			attr.Cloneflags |= unix.CLONE_NEWUSER
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
		}
		c.SysProcAttr = attr
	}
}

// needNamespaces skips the test where namespaces cannot be made, as in most rented containers; a machine that is
// promised to make them ([drivertest.RequireEnv]) fails it. GPU_TEST=require promises a GPU only.
func needNamespaces(tb testing.TB, flags uintptr) {
	tb.Helper()
	p, err := tryStart(tb, inNamespaces(flags))
	drivertest.Needs(tb, "namespaces", err == nil,
		fmt.Sprintf("namespaces cannot be made here (run as root, or allow user namespaces): %v", err))
	p.kill()
}

// ownSharedMemory gives this process, which is in a mount namespace of its own, an empty /dev/shm that nobody else
// sees.
func ownSharedMemory() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return os.NewSyscallError("mount", unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"))
}
