package host

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

var _ driver.Identifier = (*memory)(nil)

// Identity implements [driver.Identifier]: the device and inode of the memfd, and the range of it that the memory is.
func (m *memory) Identity() (id string, frozen, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return "", false, false
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.resources.fd, &st); err != nil {
		return "", false, false
	}
	seals, err := unix.FcntlInt(uintptr(m.resources.fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return "", false, false
	}
	return fmt.Sprintf("memfd:%d:%d:%d:%d", st.Dev, st.Ino, m.span.fileOffset+int64(m.span.skip), m.span.bytes), seals&writeSeals != 0, true
}
