package host

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

var (
	_ driver.Identifier = (*memory)(nil)
	_ driver.Placed     = (*memory)(nil)
)

// Identity implements [driver.Identifier]: device, inode and change time of the memfd, and the range of the memory in
// it. The kernel grants the seal against writing only while no mapping is writable, so the bytes are final; the seal
// against future writers, which Freeze adds, permits existing mappings. The time distinguishes memory from a later
// memfd with the same inode number, which old kernels reuse.
func (m *memory) Identity() (id string, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return "", false
	}
	seals, err := unix.FcntlInt(uintptr(m.backing.fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_WRITE == 0 {
		return "", false
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.backing.fd, &st); err != nil {
		return "", false
	}
	return fmt.Sprintf("memfd:%d:%d:%d:%d:%d", st.Dev, st.Ino, st.Ctim.Nano(), m.span.fileOffset, m.span.bytes), true
}

// Place implements [driver.Placed]: device and inode of the memfd, and the range of the memory in it. The system is
// queried once.
func (m *memory) Place() (place driver.Place, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return driver.Place{}, false
	}
	if known := m.place.Load(); known != nil {
		return *known, true
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.backing.fd, &st); err != nil {
		return driver.Place{}, false
	}
	place = driver.Place{Object: fmt.Sprintf("memfd:%d:%d", st.Dev, st.Ino), Offset: m.span.fileOffset, Bytes: m.span.bytes}
	m.place.Store(&place)
	return place, true
}
