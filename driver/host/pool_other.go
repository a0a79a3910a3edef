//go:build !linux

package host

import "github.com/sharedtensor/sharedtensor/driver"

type keptSlab struct{}

// NewPool returns a pool of a device's memory.
func NewPool(dev *Device, opts PoolOptions) *Pool { return &Pool{Device: dev, opts: opts} }

// Reuses returns the reason why memory is not reused.
func (p *Pool) Reuses() error { return errUnsupported }

// AllocUninitialized implements [driver.UninitializedAllocator].
func (p *Pool) AllocUninitialized(bytes int64) (driver.Memory, error) { return p.Alloc(bytes) }

// Trim does nothing.
func (p *Pool) Trim() (bytes int64) { return 0 }

// Close does nothing.
func (p *Pool) Close() error { return nil }
