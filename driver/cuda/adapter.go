package cuda

import (
	"fmt"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
)

// This file, import.go and probe.go implement the interfaces of package driver. The other files are the typed binding to
// the CUDA driver, which is useful without them.

var (
	_ driver.Addressable = (*Memory)(nil)
	_ driver.Loader      = (*Memory)(nil)
	_ driver.Device      = (*Device)(nil)
)

// MemoryLimit implements [driver.Device]. A process may use all memory of the device.
func (d *Device) MemoryLimit() (bytes int64, why string) {
	return d.info.TotalBytes, "the memory of " + d.info.String()
}

// Alloc returns zeroed memory of the given number of bytes, which the caller owns. Other processes can import it by the
// handle kind with which the device was opened. The underlying allocation is rounded up to the device's granularity.
func (d *Device) Alloc(bytes int64) (driver.Memory, error) {
	m, err := d.AllocMemory(bytes)
	for err != nil && d.RetryAfterReclaim(bytes, err) {
		m, err = d.AllocMemory(bytes)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// DevicePointer returns the address on the device. It is valid until Close, and 0 after it.
func (m *Memory) DevicePointer() uint64 { return uint64(m.Pointer()) }

// Exposed implements [driver.Addressable].
func (m *Memory) Exposed() *atomic.Bool { return &m.life.exposed }

// Describe implements [driver.Memory]. The place is the range of addresses on the device. A legacy handle is opened once
// in a process, so its memory is always at the same place. Memory of the other kinds of handle has a new address at
// each import.
func (m *Memory) Describe() (driver.Description, error) {
	if err := m.use(); err != nil {
		return driver.Description{}, m.dev.opError("describe", err)
	}
	defer m.done()
	return driver.Description{Place: driver.Place{Object: "cuda:" + m.dev.info.UUID.String(), Offset: int64(m.ptr), Bytes: m.bytes}}, nil
}

// Freeze implements [driver.Memory]. It returns a [driver.UnsupportedError].
func (m *Memory) Freeze() error { return m.noSeals("closing memory of %s against new writers") }

// Seal implements [driver.Memory]. It returns a [driver.UnsupportedError].
func (m *Memory) Seal() error { return m.noSeals("closing memory of %s against all writers") }

func (m *Memory) noSeals(feature string) error {
	if err := m.use(); err != nil {
		return m.dev.opError("seal", err)
	}
	defer m.done()
	return &driver.UnsupportedError{Feature: fmt.Sprintf(feature, m.dev.info), Requires: "host memory"}
}

// CopyFrom copies n bytes of src at srcOff to the memory at off, and returns when the copy is done. src must be memory
// of this package. Memory of another device is copied directly if the devices can access each other's memory. Otherwise
// CopyFrom returns an error that matches [errors.ErrUnsupported]. The copy is ordered like WriteAt.
func (m *Memory) CopyFrom(off int64, src driver.Memory, srcOff, n int64) error {
	from, ok := src.(*Memory)
	if !ok {
		return m.dev.opError("copy", &driver.UnsupportedError{Feature: "a copy inside the device", Requires: "memory of this package"})
	}
	return m.dev.opError("copy", m.copyFrom(off, from, srcOff, n))
}

// Handle returns the handle of Export without its descriptor.
func (m *Memory) Handle() (driver.Handle, error) {
	h, err := m.Export()
	if err != nil {
		return driver.Handle{}, err
	}
	err = h.Close()
	h.File = nil
	return h, err
}

// Export returns a handle with which another process can import the memory. The caller owns the handle, and must first
// wait for work that still writes the memory.
func (m *Memory) Export() (driver.Handle, error) {
	if err := m.use(); err != nil {
		return driver.Handle{}, m.dev.opError("export", err)
	}
	defer m.done()
	if m.export == nil {
		return driver.Handle{}, m.dev.opError("export",
			&driver.UnsupportedError{Feature: "sharing memory of a pool", Requires: "memory from Device.Alloc"})
	}
	h, err := m.export()
	if err != nil {
		return driver.Handle{}, m.dev.opError("export", err)
	}
	h.Device, h.Bytes = m.dev.info.UUID, m.bytes
	return h, nil
}
