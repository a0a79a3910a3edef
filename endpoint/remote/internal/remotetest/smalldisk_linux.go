package remotetest

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// SmallDisk is a mounted file system of limited size.
type SmallDisk struct {
	// Path is the mount point.
	Path string
	t    testing.TB
}

// NewSmallDisk mounts a file system of bytes bytes in a folder of the test. If the test has no permission to mount, it
// is skipped, unless SHAREDTENSOR_REQUIRE names "mount".
func NewSmallDisk(t testing.TB, bytes int64) *SmallDisk {
	t.Helper()
	d := &SmallDisk{Path: t.TempDir(), t: t}
	err := unix.Mount("sharedtensor-test", d.Path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, sizeOption(bytes))
	drivertest.Needs(t, "mount", err == nil, fmt.Sprintf("a file system without room, for a full disk: mount: %v", err))
	t.Cleanup(func() {
		if err := unix.Unmount(d.Path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", d.Path, err)
		}
	})
	return d
}

func sizeOption(bytes int64) string { return fmt.Sprintf("size=%d,mode=0700", bytes) }

// Resize changes the size of the file system, as when an operator adds space.
func (d *SmallDisk) Resize(bytes int64) {
	d.t.Helper()
	if err := unix.Mount("", d.Path, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, sizeOption(bytes)); err != nil {
		d.t.Fatalf("remount %s: %v", d.Path, err)
	}
}

// Free returns the number of free bytes.
func (d *SmallDisk) Free() int64 {
	d.t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(d.Path, &s); err != nil {
		d.t.Fatalf("statfs %s: %v", d.Path, err)
	}
	return int64(s.Bavail) * s.Bsize
}
