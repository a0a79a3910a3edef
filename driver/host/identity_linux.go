package host

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// facts are the parts of a memory's description that never change. The system is queried once.
type facts struct {
	place    driver.Place
	reusable bool
}

// Describe implements [driver.Memory].
func (m *memory) Describe() (driver.Description, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return driver.Description{}, m.device.opError("describe", os.ErrClosed)
	}
	fd := m.backing.fd
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return driver.Description{}, m.device.opError("describe", os.NewSyscallError("fcntl F_GET_SEALS", err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return driver.Description{}, m.device.opError("describe", os.NewSyscallError("fstat", err))
	}
	f := m.facts.Load()
	if f == nil {
		f = &facts{
			place:    driver.Place{Object: fmt.Sprintf("memfd:%d:%d", st.Dev, st.Ino), Offset: m.span.fileOffset, Bytes: m.span.bytes},
			reusable: m.use != nil || openedReadOnly(fd),
		}
		m.facts.Store(f)
	}
	d := driver.Description{
		Freezable: true,
		Frozen:    seals&writeSeals != 0,
		Place:     f.place,
		Allocated: min(st.Blocks*512, st.Size),
		Size:      st.Size,
		Reusable:  f.reusable,
	}
	if seals&unix.F_SEAL_WRITE != 0 {
		d.Identity = m.identity(&st)
	}
	return d, nil
}

// identity consists of the device, inode and change time of the memfd, and the range of the memory in it. The kernel
// grants the seal against writing only while no mapping is writable, so the bytes are final; the seal against future
// writers, which Freeze adds, permits existing mappings. The time distinguishes memory from a later memfd with the same
// inode number, which old kernels reuse.
func (m *memory) identity(st *unix.Stat_t) string {
	return fmt.Sprintf("memfd:%d:%d:%d:%d:%d", st.Dev, st.Ino, st.Ctim.Nano(), m.span.fileOffset, m.span.bytes)
}

// openedReadOnly reports whether the descriptor cannot be written. Receivers of pool memory get such descriptors.
func openedReadOnly(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY
}
