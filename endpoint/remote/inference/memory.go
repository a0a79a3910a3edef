package inference

import (
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// argumentMemory allocates the memory of arguments. Host memory is reused when no function uses it, because creating
// and mapping it takes longer than most requests.
type argumentMemory struct {
	device driver.Device
	pool   *host.Pool // nil for other devices
}

// newArgumentMemory returns an allocator for a device, which it borrows. It keeps at most keep bytes of unused memory.
func newArgumentMemory(dev driver.Device, keep int64) argumentMemory {
	a := argumentMemory{device: dev}
	if d, is := dev.(*host.Device); is {
		a.pool = host.NewPool(d, host.PoolOptions{Bytes: keep})
	}
	return a
}

// alloc returns owned memory for an argument of a model. Its content is undefined.
//
// Memory that another process can map writable is never reused. Arguments for an owner are therefore sealed against
// writable mappings; the kernel then reports whether a process still maps the memory. A function that writes to its
// arguments gets new memory.
func (a *argumentMemory) alloc(m *model, bytes int64) (driver.Memory, error) {
	if a.pool == nil || m.writes {
		return a.device.Alloc(bytes)
	}
	memory, err := a.pool.AllocUninitialized(bytes)
	if err != nil || !m.owned {
		return memory, err
	}
	_ = memory.Freeze() // memory that the system cannot freeze is not reused
	return memory, nil
}

// close releases the unused memory.
func (a *argumentMemory) close() error {
	if a.pool == nil {
		return nil
	}
	return a.pool.Close()
}
