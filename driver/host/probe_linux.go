package host

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Probe tests this device's only kind of handle: it allocates a page of memory, seals, exports and imports it.
func (d *Device) Probe() []driver.Support {
	return []driver.Support{{Kind: driver.Memfd, Err: d.tryShare()}}
}

func (d *Device) tryShare() error {
	m, err := d.Alloc(1)
	if err != nil {
		return err
	}
	defer m.Close()
	h, err := m.Export()
	if err != nil {
		return err
	}
	defer h.Close()
	peer, err := d.Import(h, driver.ImportOptions{})
	if err != nil {
		return err
	}
	return peer.Close()
}

// Features reports the properties of the system that sharing depends on, for diagnosis. It allocates and frees one page
// of memory.
func (d *Device) Features() []Feature {
	return append([]Feature{memfdFeature()}, d.system.features()...)
}

// Features is [Device.Features] for a host on which Open fails.
func Features() []Feature { return append([]Feature{memfdFeature()}, systemFrom("/").features()...) }

func (s system) features() []Feature {
	return []Feature{freezeFeature(), s.bootIDFeature(), s.hugeFeature(), s.memoryFeature(), fileSizeFeature(), descriptorFeature(), addressFeature()}
}

func memfdFeature() Feature {
	f := Feature{Name: "sealed memfd", Required: true}
	fd, err := createMemfd(int64(os.Getpagesize()))
	if err != nil {
		f.Err = fmt.Errorf("this host gives no sealed shared memory: %w", err)
		return f
	}
	_ = unix.Close(fd) // best effort
	return f
}

func freezeFeature() Feature {
	f := Feature{Name: "read-only by the owner (F_SEAL_FUTURE_WRITE)", Required: true}
	fd, err := memfdCreate()
	if err != nil {
		f.Err = refused("memfd_create", 0, err)
		return f
	}
	defer func() { _ = unix.Close(fd) }()
	f.Err = freeze(fd, true)
	return f
}

func (s system) bootIDFeature() Feature {
	f := Feature{Name: "boot id", Required: true}
	id, err := driver.ParseUUID(s.read(bootIDPath[1:]))
	if err != nil {
		f.Err = fmt.Errorf("%s does not tell which host this is, so handles cannot be told from another host's", bootIDPath)
		f.Advice = "mount /proc"
		return f
	}
	f.Detail = id.String()
	return f
}

func (s system) hugeFeature() Feature {
	f := Feature{Name: "huge pages", Detail: s.hugeSetting()}
	switch {
	case f.Detail == "":
		f.Err = &driver.UnsupportedError{Feature: "huge pages for shared memory", Requires: "a kernel with transparent huge pages"}
	case s.hugePolicy() == hugeNever:
		f.Err = fmt.Errorf("the kernel gives shared memory no huge pages (%s)", f.Detail)
		f.Advice = "write advise to /" + shmemEnabled + " as root for faster access to large models"
	}
	return f
}

func (s system) memoryFeature() Feature {
	bytes, source := s.available()
	if bytes == math.MaxInt64 {
		return Feature{Name: "memory", Detail: "how much is available is not known: the kernel does not tell"}
	}
	f := Feature{Name: "memory", Detail: "available by " + source, Bytes: bytes}
	if bytes < checkedBytes {
		f.Err = fmt.Errorf("little memory is available by %s", source)
	}
	return f
}

func fileSizeFeature() Feature {
	f := Feature{Name: "file size limit"}
	if limit := fileSizeLimit(); limit < math.MaxInt64 {
		f.Bytes = limit
		f.Err, f.Advice = errors.New("one allocation is bounded by RLIMIT_FSIZE"), "raise ulimit -f"
	}
	return f
}

// fewDescriptors is a soft limit that is too low for an owner with many slabs and clients.
const fewDescriptors = 1024

func descriptorFeature() Feature {
	f := Feature{Name: "descriptors"}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		f.Err = os.NewSyscallError("getrlimit", err)
		return f
	}
	f.Detail = fmt.Sprintf("limit %d", r.Cur)
	if r.Cur < fewDescriptors {
		f.Err = fmt.Errorf("a process may have only %d descriptors open, one for every slab and client", r.Cur)
		f.Advice = "raise ulimit -n"
	}
	return f
}

func addressFeature() Feature {
	f := Feature{Name: "address space"}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &r); err != nil {
		f.Err = os.NewSyscallError("getrlimit", err)
		return f
	}
	if r.Cur != unix.RLIM_INFINITY {
		f.Bytes = int64(min(r.Cur, math.MaxInt64))
		f.Err, f.Advice = errors.New("what this process may map in all is bounded by RLIMIT_AS"), "raise ulimit -v"
	}
	return f
}
