package cli

import (
	"fmt"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
)

// lazyGPU is a GPU that is opened at its first use.
type lazyGPU struct {
	claimed driver.Info // as the owner describes it
	opener  func(driver.UUID) (driver.Device, error)

	once sync.Once
	dev  driver.Device // nil until it is opened
	err  error
}

// LazyGPU returns the GPU that an owner describes as info. It is opened by open, with its UUID, at its first use.
// Opening a GPU creates a context, which takes memory of the GPU and most of a second.
func LazyGPU(info driver.Info, open func(driver.UUID) (driver.Device, error)) driver.Device {
	return &lazyGPU{claimed: info, opener: open}
}

func (l *lazyGPU) open() (driver.Device, error) {
	l.once.Do(func() {
		if l.dev, l.err = l.opener(l.claimed.UUID); l.err != nil {
			l.dev, l.err = nil, fmt.Errorf("open GPU %s: %w", l.claimed.UUID, l.err)
		}
	})
	return l.dev, l.err
}

// Info implements [driver.Device] with the owner's description.
func (l *lazyGPU) Info() driver.Info { return l.claimed }

// Alloc implements [driver.Device].
func (l *lazyGPU) Alloc(bytes int64) (driver.Memory, error) {
	dev, err := l.open()
	if err != nil {
		return nil, err
	}
	return dev.Alloc(bytes)
}

// Import implements [driver.Device].
func (l *lazyGPU) Import(h driver.Handle, opts driver.ImportOptions) (driver.Memory, error) {
	dev, err := l.open()
	if err != nil {
		return nil, err
	}
	return dev.Import(h, opts)
}

// Synchronize implements [driver.Device].
func (l *lazyGPU) Synchronize() error {
	dev, err := l.open()
	if err != nil {
		return err
	}
	return dev.Synchronize()
}

// Probe implements [driver.Device].
func (l *lazyGPU) Probe() []driver.Support {
	dev, err := l.open()
	if err != nil {
		return nil
	}
	return dev.Probe()
}

// MemoryLimit implements [driver.Device].
func (l *lazyGPU) MemoryLimit() (int64, string) {
	dev, err := l.open()
	if err != nil {
		return 0, ""
	}
	return dev.MemoryLimit()
}

// OnRefused implements [driver.Device].
func (l *lazyGPU) OnRefused(reclaim func(int64) bool) (remove func()) {
	dev, err := l.open()
	if err != nil {
		return func() {}
	}
	return dev.OnRefused(reclaim)
}

// Close implements [driver.Device]. A GPU that is not open yet stays closed.
func (l *lazyGPU) Close() error {
	l.once.Do(func() { l.err = os.ErrClosed })
	if l.dev == nil {
		return nil
	}
	return l.dev.Close()
}
