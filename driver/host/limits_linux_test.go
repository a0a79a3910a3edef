package host

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// A separate process with the limit is refused memory by the kernel. limitedVariable names its action.
const limitedVariable = "SHAREDTENSOR_HOST_LIMITED"

const mib = 1 << 20

var limitedRuns = map[string]func(*Device) error{
	"file size":       limitedFileSize,
	"address space":   limitedAddressSpace,
	"descriptors":     limitedDescriptors,
	"full tmpfs":      fullTmpfs,
	"huge page tmpfs": hugePageTmpfs,
}

// runLimited ends the process if it is one with limits.
func runLimited() {
	run, ok := limitedRuns[os.Getenv(limitedVariable)]
	if !ok {
		return
	}
	d, err := Open()
	if err == nil {
		err = run(d)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func TestMemoryRefusedByTheKernel(t *testing.T) {
	for _, name := range []string{"file size", "address space", "descriptors"} {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			cmd := limitedCommand(t, name)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}

// TestTmpfs needs root in a user namespace to mount its file systems.
func TestTmpfs(t *testing.T) {
	for name, mount := range map[string]string{"full tmpfs": "size=1m", "huge page tmpfs": "huge=advise"} {
		t.Run(name, func(t *testing.T) {
			cmd := limitedCommand(t, name)
			cmd.Env = append(cmd.Env, "MOUNT_OPTIONS="+mount, "MOUNT_POINT="+t.TempDir())
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
			out, err := cmd.CombinedOutput()
			if err != nil && (strings.Contains(string(out), errNoMount.Error()) || cmd.Process == nil) {
				t.Skipf("no file system can be mounted here: %v %s", err, out)
			}
			require.NoError(t, err, "%s", out)
		})
	}
}

func limitedCommand(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), limitedVariable+"="+name, "TMPDIR="+t.TempDir(), "GORACE=atexit_sleep_ms=0")
	return cmd
}

// check is an assertion for a process without a testing.T.
func check(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// refusals collects unexpected errors, and resources that failures left behind.
type refusals struct {
	before *drivertest.Snapshot
	errs   []error
}

func (r *refusals) want(what string, err error, targets ...error) {
	for _, target := range targets {
		r.errs = append(r.errs, check(errors.Is(err, target), "%s: want %v, got %v", what, target, err))
	}
	r.nothingLeft(what)
}

func (r *refusals) nothingLeft(what string) {
	left := r.before.Left()
	r.errs = append(r.errs, check(len(left) == 0, "%s left behind: %v", what, left))
}

func (r *refusals) err() error { return errors.Join(r.errs...) }

func setLimit(resource int, limit uint64) error {
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: unix.RLIM_INFINITY})
}

func limitedFileSize(d *Device) error {
	made, err := d.Alloc(4 * mib)
	if err != nil {
		return err
	}
	defer made.Close()
	source := filepath.Join(os.TempDir(), "source")
	if err := os.WriteFile(source, slices.Repeat([]byte{7}, 2*mib), 0o600); err != nil {
		return err
	}
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := setLimit(unix.RLIMIT_FSIZE, mib); err != nil {
		return err
	}
	r := &refusals{before: drivertest.TakeSnapshot()}
	_, err = d.Alloc(mib + 1)
	r.want("alloc", err, driver.ErrOutOfMemory)
	r.errs = append(r.errs, check(strings.Contains(err.Error(), "RLIMIT_FSIZE"), "%v does not name the limit", err))
	small, err := d.Alloc(mib)
	r.errs = append(r.errs, err)
	if err == nil {
		small.Close()
	}
	// A write by descriptor at this place would raise SIGXFSZ.
	r.errs = append(r.errs, made.(driver.Loader).LoadAt(f, 0, 2*mib, 2*mib, nil))
	r.errs = append(r.errs, check(made.(driver.Mapped).Data()[4*mib-1] == 7, "the load did not arrive"))
	r.nothingLeft("load")
	return r.err()
}

func limitedAddressSpace(d *Device) error {
	debug.SetGCPercent(-1)
	d.options.lazy = true
	made, err := d.Alloc(256 * mib)
	if err != nil {
		return err
	}
	defer made.Close()
	h, err := made.Export()
	if err != nil {
		return err
	}
	defer h.Close()
	r := &refusals{before: drivertest.TakeSnapshot()}
	var pages int64
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		return err
	}
	// Room for the Go heap to grow by an arena or two, but not for the memory.
	if err := setLimit(unix.RLIMIT_AS, uint64(pages)*uint64(os.Getpagesize())+192*mib); err != nil {
		return err
	}
	_, err = d.Alloc(256 * mib)
	r.want("alloc", err, driver.ErrOutOfMemory, unix.ENOMEM)
	_, err = d.Import(h, driver.ImportOptions{})
	r.want("import", err, driver.ErrOutOfMemory, unix.ENOMEM)
	return r.err()
}

func limitedDescriptors(d *Device) error {
	made, err := d.Alloc(mib)
	if err != nil {
		return err
	}
	defer made.Close()
	h, err := made.Export()
	if err != nil {
		return err
	}
	defer h.Close()
	r := &refusals{before: drivertest.TakeSnapshot()}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	free, err := unix.FcntlInt(h.File.Fd(), unix.F_DUPFD_CLOEXEC, 0) // the lowest free number
	if err != nil {
		return err
	}
	unix.Close(free)
	tight := func(run func() error) error {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: before.Max}); err != nil {
			return err
		}
		defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
		return run()
	}
	r.want("alloc", tight(func() error { _, err := d.Alloc(1); return err }), unix.EMFILE)
	r.want("import", tight(func() error { _, err := d.Import(h, driver.ImportOptions{}); return err }), unix.EMFILE)
	r.want("export", tight(func() error { _, err := made.Export(); return err }), unix.EMFILE)
	again, err := d.Alloc(1)
	r.errs = append(r.errs, err)
	if err == nil {
		again.Close()
	}
	return r.err()
}

var errNoMount = errors.New("mount refused")

// tmpfsMapping mounts a tmpfs and maps a file in it.
func tmpfsMapping(size int64) (fd int, mapping []byte, err error) {
	point := os.Getenv("MOUNT_POINT")
	if err := unix.Mount("tmpfs", point, "tmpfs", 0, os.Getenv("MOUNT_OPTIONS")); err != nil {
		return -1, nil, fmt.Errorf("%w: %w", errNoMount, err)
	}
	fd, err = unix.Open(point, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, nil, err
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return -1, nil, err
	}
	mapping, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return fd, mapping, err
}

func fullTmpfs(d *Device) error {
	fd, mapping, err := tmpfsMapping(4 * mib)
	if err != nil {
		return err
	}
	for _, policy := range []hugePolicy{hugeNever, hugeAdvise} {
		d.huge = policy
		if err := refused("reserve", 4*mib, d.reserve(fd, mapping)); !errors.Is(err, driver.ErrOutOfMemory) {
			return fmt.Errorf("policy %d: no driver.ErrOutOfMemory but %v", policy, err)
		}
	}
	return nil
}

func hugePageTmpfs(d *Device) error {
	fd, mapping, err := tmpfsMapping(4 * mib)
	if err != nil {
		return err
	}
	if err := unix.Madvise(mapping, unix.MADV_HUGEPAGE); err != nil {
		return fmt.Errorf("%w: no huge pages: %w", errNoMount, err)
	}
	d.huge = hugeAdvise
	if err := d.reserve(fd, mapping); err != nil {
		return err
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(smaps)) {
		if rest, ok := strings.CutPrefix(line, "ShmemPmdMapped:"); ok && strings.TrimSpace(rest) != "0 kB" {
			return nil
		}
	}
	return fmt.Errorf("%w: the kernel gave no huge page, which it may", errNoMount)
}

func TestMoreThanTheSystemHas(t *testing.T) {
	for name, opts := range map[string][]Option{"reserved": nil, "lazy": {Lazy()}} {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			d, err := Open(opts...)
			require.NoError(t, err)
			available, _ := d.system.available()
			require.Less(t, available, int64(math.MaxInt64))
			for _, bytes := range []int64{available + 1<<30, 1 << 45, 1 << 50} {
				_, err = d.Alloc(bytes)
				require.ErrorIs(t, err, driver.ErrOutOfMemory)
				require.ErrorContains(t, err, "available")
			}
		})
	}
}
