package host

import (
	"errors"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// keptSlab is memory that this process has closed. Other processes may still hold it.
type keptSlab struct {
	*slab
	since time.Time
}

// NewPool returns a pool of a device's memory, which the caller closes. It borrows the device.
func NewPool(dev *Device, opts PoolOptions) *Pool {
	if opts.Bytes <= 0 {
		opts.Bytes = dev.info.TotalBytes / 4
	}
	if opts.Idle <= 0 {
		opts.Idle = poolIdle
	}
	p := &Pool{Device: dev, opts: opts}
	p.remove = dev.OnRefused(func(int64) bool { return p.Trim() > 0 })
	return p
}

// Reuses returns nil if memory of the pool is reused, otherwise the reason ([errors.ErrUnsupported]).
func (p *Pool) Reuses() error { return canCount() }

// Alloc implements [driver.Device]. It returns the errors of [Device.Alloc].
func (p *Pool) Alloc(bytes int64) (driver.Memory, error) { return p.alloc(bytes, true) }

// AllocUninitialized implements [driver.UninitializedAllocator].
func (p *Pool) AllocUninitialized(bytes int64) (driver.Memory, error) { return p.alloc(bytes, false) }

func (p *Pool) alloc(bytes int64, zeroed bool) (driver.Memory, error) {
	size, ok := roundUp(max(bytes, 1), p.info.Granularity)
	if bytes <= 0 || !ok || size > p.opts.Bytes || canCount() != nil {
		return p.Device.Alloc(bytes)
	}
	s, busy := p.take(size)
	again := s != nil
	if !again {
		var err error
		if s, err = p.allocSlab(size, true); err != nil {
			return nil, p.opError("alloc", err)
		}
	}
	mem, err := s.Use(bytes, func(clean bool) { p.recycle(s, clean) })
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	count := driver.PoolStats{Fresh: 1}
	if again {
		count = driver.PoolStats{Reused: 1}
		from := bytes // the rest of the last page is shared with the memory
		if zeroed {
			from = 0
		}
		clear(s.backing.mapping[from:])
	} else if busy {
		count.Busy = 1
	}
	driver.CountPool(count)
	return mem, nil
}

// take returns the most recently closed slab of that size that no other process holds, or nil. busy reports whether
// other processes hold one.
func (p *Pool) take(size int64) (s *slab, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, kept := range slices.Backward(p.kept) {
		if kept.span.bytes != size {
			continue
		}
		if alone, err := exclusive(kept.backing.fd); err == nil && alone {
			p.removeLocked(i)
			return kept.slab, false
		}
		busy = true
	}
	return nil, busy
}

// removeLocked removes the slab at an index.
func (p *Pool) removeLocked(i int) {
	bytes := p.kept[i].span.bytes
	p.kept = slices.Delete(p.kept, i, i+1)
	p.bytes -= bytes
	driver.CountPool(driver.PoolStats{Slabs: -1, Bytes: -bytes})
}

// recycle puts a closed slab on the free list, or frees it if it is not clean.
func (p *Pool) recycle(s *slab, clean bool) {
	if !clean || !p.keep(s) {
		_ = s.Close() // best effort
	}
}

// keep adds a slab to the free list, replacing those closed first. It returns false if the pool is closed.
func (p *Pool) keep(s *slab) bool {
	p.mu.Lock()
	var dropped []*slab
	defer func() {
		p.mu.Unlock()
		closeSlabs(dropped)
	}()
	if p.closed {
		return false
	}
	for len(p.kept) > 0 && (len(p.kept) >= poolSlabs || p.bytes > p.opts.Bytes-s.span.bytes) {
		dropped = append(dropped, p.kept[0].slab)
		p.removeLocked(0)
	}
	p.kept = append(p.kept, keptSlab{s, time.Now()})
	p.bytes += s.span.bytes
	driver.CountPool(driver.PoolStats{Slabs: 1, Bytes: s.span.bytes})
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.opts.Idle, p.dropIdle)
	}
	return true
}

// dropIdle frees slabs that were not used.
func (p *Pool) dropIdle() {
	p.mu.Lock()
	var dropped []*slab
	defer func() {
		p.mu.Unlock()
		closeSlabs(dropped)
	}()
	for len(p.kept) > 0 {
		if left := p.opts.Idle - time.Since(p.kept[0].since); left > 0 {
			p.sweep.Reset(left)
			return
		}
		dropped = append(dropped, p.kept[0].slab)
		p.removeLocked(0)
	}
	p.sweep = nil
}

// Trim frees all kept slabs, and returns the bytes that no other process holds and that are free now. It is called
// after an allocation of the device was refused.
func (p *Pool) Trim() (bytes int64) {
	p.mu.Lock()
	var dropped []*slab
	for len(p.kept) > 0 {
		s := p.kept[len(p.kept)-1].slab
		dropped = append(dropped, s)
		p.removeLocked(len(p.kept) - 1)
	}
	p.mu.Unlock()
	for _, s := range dropped {
		if alone, err := exclusive(s.backing.fd); err == nil && alone {
			bytes += s.span.bytes
		}
	}
	closeSlabs(dropped)
	return bytes
}

// closeSlabs frees slabs that this process does not use.
func closeSlabs(slabs []*slab) {
	for _, s := range slabs {
		_ = s.Close() // best effort
	}
}

// Close frees the kept slabs. Memory in use stays valid and is not reused after it is closed; later allocations are
// those of the device. The device stays open. A second Close returns nil.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
	}
	p.mu.Unlock()
	p.remove()
	p.Trim()
	return nil
}
