package host

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	bootIDPath    = "/proc/sys/kernel/random/boot_id"
	hugePageBytes = 2 << 20
)

// Device is the memory of this host. It implements [driver.Device]; its memory implements [driver.Mapped] and
// [driver.Loader]. Devices hold no resources. All Devices of a host have the same
// UUID, so they are one device for other processes.
type Device struct {
	info    driver.Info
	options options
	system  system
	huge    hugePolicy
	closed  atomic.Bool
	credit  atomic.Int64 // bytes that may be allocated before the available memory is read again
	driver.Reclaim
}

var _ driver.Device = (*Device)(nil)

// Open returns the host's device, owned by the caller. Its UUID is the kernel's boot id, so handles from another host,
// or from before a reboot, are recognised. It fails without /proc.
func Open(opts ...Option) (*Device, error) {
	id, err := os.ReadFile(bootIDPath)
	if err != nil {
		return nil, &driver.OpError{Op: "open", Device: "host", Err: err}
	}
	uuid, err := driver.ParseUUID(string(id))
	if err != nil {
		return nil, &driver.OpError{Op: "open", Device: "host", Err: fmt.Errorf("%s: %w", bootIDPath, err)}
	}
	d := &Device{
		info: driver.Info{
			Type:        driver.CPU,
			UUID:        uuid,
			Name:        "host memory",
			Granularity: int64(os.Getpagesize()),
			TotalBytes:  totalBytes(),
		},
		system: systemFrom("/"),
	}
	for _, o := range opts {
		o(&d.options)
	}
	d.huge = d.system.hugePolicy()
	return d, nil
}

// Info describes the device. Granularity is the page size.
func (d *Device) Info() driver.Info { return d.info }

// Synchronize returns nil: host memory has no asynchronous work.
func (d *Device) Synchronize() error { return nil }

// Close makes Alloc and Import fail with [os.ErrClosed]. Existing memory stays usable until it is closed.
func (d *Device) Close() error {
	d.closed.Store(true)
	return nil
}

// Alloc returns owned, zeroed memory: a new memfd, sealed against shrinking and growing and mapped. Size 0 allocates
// one page. Memory that the system does not have, or that exceeds a limit of this process, is [driver.ErrOutOfMemory]
// with the reason; a lack of descriptors is [syscall.EMFILE] or [syscall.ENFILE]. After a failure no resources are
// left.
func (d *Device) Alloc(bytes int64) (driver.Memory, error) {
	m, err := d.alloc(bytes)
	for err != nil && d.RetryAfterReclaim(bytes, err) {
		m, err = d.alloc(bytes)
	}
	if err != nil {
		return nil, d.opError("alloc", err)
	}
	return m, nil
}

// Import maps a memfd of another process, or of this one, without copying or touching its bytes. It verifies the
// descriptor with the kernel: one that is not a memfd, is not sealed against shrinking and growing, or is smaller than
// the handle claims is refused with [driver.ErrHandle], as is a handle of another host. Frozen memory, and a descriptor
// opened read-only, refuse a writable mapping with [driver.ErrReadOnly]. The memory keeps a duplicate of the
// descriptor, so that it can be exported again.
func (d *Device) Import(h driver.Handle, opts driver.ImportOptions) (driver.Memory, error) {
	m, err := d.importHandle(h, opts)
	if err != nil {
		return nil, d.opError("import", err)
	}
	return m, nil
}

func (d *Device) opError(op string, err error) error {
	return &driver.OpError{Op: op, Device: "host", Err: err}
}

// roundUp rounds n up to a multiple of the power of two unit; ok is false on overflow.
func roundUp(n, unit int64) (rounded int64, ok bool) {
	if n > math.MaxInt64-unit+1 {
		return 0, false
	}
	return (n + unit - 1) &^ (unit - 1), true
}

func totalBytes() int64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit)
}
