package remotetest

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// SmallDisk is a file system with little room.
type SmallDisk struct {
	// Path is the folder where it is mounted.
	Path string
	t    testing.TB
}

// NewSmallDisk mounts a file system of so many bytes in a folder of the test's. Where the test may not mount one it is
// skipped, unless SHAREDTENSOR_REQUIRE names "mount".
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

// Resize gives the file system another size, as an operator does who makes room.
func (d *SmallDisk) Resize(bytes int64) {
	d.t.Helper()
	if err := unix.Mount("", d.Path, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, sizeOption(bytes)); err != nil {
		d.t.Fatalf("remount %s: %v", d.Path, err)
	}
}

// Free is how many bytes have room.
func (d *SmallDisk) Free() int64 {
	d.t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(d.Path, &s); err != nil {
		d.t.Fatalf("statfs %s: %v", d.Path, err)
	}
	return int64(s.Bavail) * s.Bsize
}
