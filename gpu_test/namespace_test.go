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

// ownProcVariable makes an agent mount /proc.
const ownProcVariable = "GPU_TEST_OWN_PROC"

// inNamespaces starts an agent in new namespaces; flags are CLONE_NEW… flags. Unless the user is root, a user namespace
// is added. With a PID namespace, the agent has a private /proc, because cuInit fails if /proc lacks the process.
func inNamespaces(flags uintptr) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		if flags&unix.CLONE_NEWPID != 0 {
			flags |= unix.CLONE_NEWNS
			c.Env = append(c.Env, ownProcVariable+"=1")
		}
		attr := &syscall.SysProcAttr{Cloneflags: flags}
		if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
			attr.Cloneflags |= unix.CLONE_NEWUSER
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
		}
		c.SysProcAttr = attr
	}
}

// needNamespaces skips the test if namespaces cannot be created, as in most rented containers. It fails the test if the
// environment requires them ([drivertest.RequireEnv]). GPU_TEST=require requires only a GPU.
func needNamespaces(tb testing.TB, flags uintptr) {
	tb.Helper()
	p, err := tryStart(tb, inNamespaces(flags))
	if err == nil {
		err = p.answers()
	}
	drivertest.Needs(tb, "namespaces", err == nil,
		fmt.Sprintf("namespaces cannot be made here (run as root, or allow user namespaces): %v", err))
	p.kill()
}

// ownProc mounts the /proc of this PID namespace in the mount namespace of this process.
func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return os.NewSyscallError("mount /proc", unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
}

// ownSharedMemory mounts an empty, private /dev/shm in the mount namespace of this process.
func ownSharedMemory() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return os.NewSyscallError("mount", unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"))
}
