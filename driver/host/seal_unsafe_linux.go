package host

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Seal implements [driver.Memory]. The kernel grants the seal only while no shared mapping of the memfd is writable, so
// Seal first replaces this one by a private mapping of the same pages at the same address.
func (m *memory) Seal() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return m.device.opError("seal", os.ErrClosed)
	}
	if err := m.sealLocked(); err != nil {
		return m.device.opError("seal", err)
	}
	return nil
}

func (m *memory) sealLocked() error {
	seals, err := unix.FcntlInt(uintptr(m.backing.fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return os.NewSyscallError("fcntl F_GET_SEALS", err)
	case seals&unix.F_SEAL_WRITE != 0:
		return nil
	case !m.writable:
		return driver.ErrReadOnly
	case seals&unix.F_SEAL_SEAL != 0:
		return fmt.Errorf("%w: it is frozen, and takes no other seal", driver.ErrReadOnly)
	case m.writers.Load() > 0: // they continue to write to the mapping without the lock
		return fmt.Errorf("%w: wait for the load or copy into it to end", driver.ErrBusy)
	}
	if err := m.remapLocked(unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_NORESERVE); err != nil {
		return err
	}
	_, err = unix.FcntlInt(uintptr(m.backing.fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	if err == nil {
		m.writable = false
		// A shared mapping that can never become writable is also protected from debuggers. Before Linux 6.7 it is
		// refused, and the private one stays.
		_ = m.remapLocked(unix.PROT_READ, unix.MAP_SHARED)
		return nil
	}
	back := m.remapLocked(unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	m.writable = back == nil
	if err == unix.EBUSY {
		err = fmt.Errorf("%w: seal memory before it is shared, another mapping can be written: %w", driver.ErrBusy, os.NewSyscallError("fcntl F_ADD_SEALS", err))
	} else {
		err = os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return errors.Join(err, back)
}

// remapLocked maps the same pages again at the same address in one step, invisible to readers.
func (m *memory) remapLocked(prot, flags int) error {
	mapping := m.backing.mapping
	offset := m.span.fileOffset - int64(m.span.skip)
	if m.span.bytes == 0 {
		offset = 0 // as in mapRange
	}
	_, err := unix.MmapPtr(m.backing.fd, offset, unsafe.Pointer(unsafe.SliceData(mapping)), uintptr(len(mapping)), prot, flags|unix.MAP_FIXED)
	return os.NewSyscallError("mmap", err)
}
