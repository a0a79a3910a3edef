package inference

import (
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// argumentMemory is where the elements of requests are put. Memory of the host is used again as soon as no function has
// it any more: making and mapping it takes longer than most requests.
type argumentMemory struct {
	device driver.Device
	pool   *host.Pool // nil for other devices
}

// newArgumentMemory returns memory of a device, which it borrows, and of which it keeps at most so many bytes that
// nobody uses.
func newArgumentMemory(dev driver.Device, keep int64) argumentMemory {
	a := argumentMemory{device: dev}
	if d, is := dev.(*host.Device); is {
		a.pool = host.NewPool(d, host.PoolOptions{Bytes: keep})
	}
	return a
}

// alloc returns owned memory for the argument of a model, with whatever bytes are in it.
//
// Memory that others can map writable never comes back, so an owner gets it closed against that: whoever keeps it there
// is known to the kernel, which then keeps it from being used again. A function that writes to its arguments needs
// memory that is new.
func (a *argumentMemory) alloc(m *model, bytes int64) (driver.Memory, error) {
	if a.pool == nil || m.writes {
		return a.device.Alloc(bytes)
	}
	memory, err := a.pool.AllocUninitialized(bytes)
	if err != nil || !m.owned {
		return memory, err
	}
	if f, can := memory.(driver.Freezer); can {
		_ = f.Freeze() // where the system cannot, it does not come back
	}
	return memory, nil
}

// close gives up what is kept.
func (a *argumentMemory) close() error {
	if a.pool == nil {
		return nil
	}
	return a.pool.Close()
}
