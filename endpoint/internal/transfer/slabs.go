package transfer

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

const (
	// SlabsEach is the maximum number of slabs of one session.
	SlabsEach = 64
	// slabTime is the time after which a free slab is reclaimed.
	slabTime = 3 * time.Second
	// minSlabUnit is the minimum granularity of slab sizes.
	minSlabUnit = 4 << 10
)

// Slabs reuses the memory of one session's results after the client has returned it. Fresh memory costs more than the
// rest of a call with a tensor, because both processes map its pages and the kernel zeroes them. A slab is used by a
// single session, whose client may keep it mapped. The zero value has no slabs and allocates from the device. It is
// safe for concurrent use.
//
// A slab is in use while this process holds memory in it, lent while the client has it, and free otherwise.
type Slabs struct {
	mu       sync.Mutex
	byNumber map[uint64]*slab
	byMemory map[driver.Slab]*slab
	last     uint64 // number of the newest slab
	bytes    int64
	most     int64 // maximum of bytes; 0 disables slabs
	total    *SlabTotal
	wake     func() // called when gone is not empty
	gone     []uint64
	sweep    *time.Timer // runs while any slab is free
	closed   bool
}

// slab is one unit of reusable memory. Its fields are guarded by Slabs.mu.
type slab struct {
	number uint64
	device driver.Slabber
	class  int64 // size in bytes
	memory driver.Slab
	handle driver.Handle // without its descriptor; set by the first export
	inUse  bool
	lent   bool
	mapped bool  // the client has mapped it under the number
	spent  bool  // must not be reused
	sent   bool  // the client received the bytes of the current or last use
	unsent bool  // the client did not receive the bytes of an earlier use
	filled int64 // number of leading bytes that may not be zero
	freed  time.Time
}

// SlabTotal limits the slabs of all sessions and counts allocations.
type SlabTotal struct {
	// MostSlabs and MostBytes are the limits.
	MostSlabs, MostBytes int64

	mu           sync.Mutex
	slabs, bytes int64
	// Reused counts results in reused slabs. Fresh counts results in new slabs. Refused counts results without a slab, because a limit
	// was reached.
	Reused, Fresh, Refused atomic.Uint64
}

// Used returns the number and the size of all slabs.
func (t *SlabTotal) Used() (slabs, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slabs, t.bytes
}

func (t *SlabTotal) reserve(bytes int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slabs >= t.MostSlabs || bytes > t.MostBytes-t.bytes {
		return false
	}
	t.slabs++
	t.bytes += bytes
	return true
}

func (t *SlabTotal) release(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slabs--
	t.bytes -= bytes
}

// Allow sets the maximum of bytes in slabs and the limits shared by all sessions. wake is called, on any goroutine,
// when TakeGone has something to return.
func (p *Slabs) Allow(bytes int64, total *SlabTotal, wake func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most, p.total, p.wake = max(bytes, 0), total, wake
}

// allowed reports whether slabs are enabled.
func (p *Slabs) allowed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most > 0 && !p.closed
}

// Device returns a device that allocates dev's memory in slabs of the session. It returns dev if slabs are disabled or
// dev does not support them.
func (p *Slabs) Device(dev driver.Device) driver.Device {
	if slabber, can := dev.(driver.Slabber); can && p.allowed() {
		return slabDevice{slabber, p}
	}
	return dev
}

// slabDevice allocates slabs. It is comparable, as devices must be.
type slabDevice struct {
	driver.Slabber
	slabs *Slabs
}

var _ driver.UninitializedAllocator = slabDevice{}

// Alloc implements driver.Device.
func (d slabDevice) Alloc(bytes int64) (driver.Memory, error) {
	return d.slabs.alloc(d.Slabber, bytes, true)
}

// AllocUninitialized implements driver.UninitializedAllocator.
func (d slabDevice) AllocUninitialized(bytes int64) (driver.Memory, error) {
	return d.slabs.alloc(d.Slabber, bytes, false)
}

// slabClass returns the size of the slab for an allocation. There are eight sizes between two powers of two.
func slabClass(bytes int64) int64 {
	unit := max(int64(1)<<max(bits.Len64(uint64(bytes-1))-4, 0), minSlabUnit)
	if bytes > 1<<62-unit {
		return bytes
	}
	return (bytes + unit - 1) / unit * unit
}

// alloc returns memory in a slab, or fresh memory if no slab is available.
func (p *Slabs) alloc(dev driver.Slabber, bytes int64, zeroed bool) (driver.Memory, error) {
	if bytes <= 0 {
		return dev.Alloc(bytes)
	}
	s, again := p.take(dev, slabClass(bytes))
	if s == nil {
		return dev.Alloc(bytes)
	}
	if err := p.clean(s, bytes); err != nil {
		p.useEnded(s, false)
		return dev.Alloc(bytes)
	}
	mem, err := p.use(s, bytes)
	if err != nil {
		p.useEnded(s, false)
		return dev.Alloc(bytes)
	}
	if again && zeroed {
		if err := zero(mem, 0); err != nil {
			mem.Close()
			return dev.Alloc(bytes)
		}
	}
	return mem, nil
}

// clean prepares a slab for a use of the given size. The receiver can map the whole slab, so clean zeroes what earlier
// uses left after those bytes. It zeroes everything if an earlier use was not sent to the client.
func (p *Slabs) clean(s *slab, bytes int64) error {
	p.mu.Lock()
	from, to := bytes, s.filled
	if s.unsent {
		from = 0
	}
	p.mu.Unlock()
	if from >= to {
		return nil
	}
	mem, err := s.memory.Use(to, func(bool) {})
	if err != nil {
		return err
	}
	if err := errors.Join(zero(mem, from), mem.Close()); err != nil {
		return err
	}
	p.mu.Lock()
	s.filled, s.unsent = from, false
	p.mu.Unlock()
	return nil
}

// use allocates the slab if needed and returns memory in it.
func (p *Slabs) use(s *slab, bytes int64) (driver.Memory, error) {
	if s.memory == nil {
		memory, err := s.device.AllocSlab(s.class)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		s.memory = memory
		p.byMemory[memory] = s
		p.mu.Unlock()
	}
	p.mu.Lock()
	s.sent, s.filled = false, max(s.filled, bytes)
	p.mu.Unlock()
	return s.memory.Use(bytes, func(clean bool) { p.useEnded(s, clean) })
}

// zero clears mapped memory, starting at an offset.
func zero(mem driver.Memory, from int64) error {
	mapped, ok := mem.(driver.Mapped)
	if !ok {
		return fmt.Errorf("%w: memory that is not mapped", status.ErrInvalid)
	}
	data, unpin, err := mapped.Pin(true)
	if err != nil {
		return err
	}
	defer unpin()
	clear(data[from:])
	return nil
}

// take returns a slab and marks it as in use. again reports whether it was used before. take prefers the slab that was
// freed last, because its bytes are most likely in the processor's caches. It returns nil if a limit is reached.
func (p *Slabs) take(dev driver.Slabber, class int64) (s *slab, again bool) {
	p.mu.Lock()
	defer p.unlock()
	if p.closed || class > p.most {
		return nil, false
	}
	for _, e := range p.byNumber {
		if e.free() && e.class == class && e.device == dev && (s == nil || e.freed.After(s.freed)) {
			s = e
		}
	}
	if s != nil {
		s.inUse = true
		p.total.Reused.Add(1)
		return s, true
	}
	for len(p.byNumber) >= SlabsEach || p.bytes > p.most-class {
		oldest := p.leastRecentLocked()
		if oldest == nil {
			p.total.Refused.Add(1)
			return nil, false
		}
		p.removeLocked(oldest)
	}
	if !p.total.reserve(class) {
		p.total.Refused.Add(1)
		return nil, false
	}
	p.total.Fresh.Add(1)
	if p.byNumber == nil {
		p.byNumber, p.byMemory = map[uint64]*slab{}, map[driver.Slab]*slab{}
	}
	p.last++
	s = &slab{number: p.last, device: dev, class: class, inUse: true}
	p.byNumber[s.number] = s
	p.bytes += class
	return s, false
}

func (s *slab) free() bool { return !s.inUse && !s.lent && !s.spent }

// leastRecentLocked returns the free slab that was freed first, or nil.
func (p *Slabs) leastRecentLocked() (oldest *slab) {
	for _, s := range p.byNumber {
		if s.free() && (oldest == nil || s.freed.Before(oldest.freed)) {
			oldest = s
		}
	}
	return oldest
}

// useEnded marks a slab as no longer in use. If clean is false, it may still be mapped elsewhere and is not reused.
func (p *Slabs) useEnded(s *slab, clean bool) {
	p.mu.Lock()
	defer p.unlock()
	s.inUse = false
	s.spent = s.spent || !clean
	s.unsent = s.unsent || !s.sent
	p.reclaimLocked(s)
}

// reclaimLocked frees or removes a slab after a use or a loan has ended.
func (p *Slabs) reclaimLocked(s *slab) {
	switch {
	case s.inUse:
	case p.closed || s.spent && !s.lent:
		p.removeLocked(s)
	case s.lent:
	default:
		s.freed = time.Now()
		if p.sweep == nil {
			p.sweep = time.AfterFunc(slabTime, p.dropUnused)
		}
	}
}

// removeLocked closes a slab that is not in use.
func (p *Slabs) removeLocked(s *slab) {
	if p.byNumber[s.number] != s {
		return
	}
	delete(p.byNumber, s.number)
	p.bytes -= s.class
	p.total.release(s.class)
	if s.memory != nil {
		delete(p.byMemory, s.memory)
		_ = s.memory.Close() // best effort
	}
	if s.mapped && !p.closed {
		p.gone = append(p.gone, s.number)
	}
}

// unlock unlocks p.mu and calls wake if slabs were removed.
func (p *Slabs) unlock() {
	wake := p.wake
	if len(p.gone) == 0 {
		wake = nil
	}
	p.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// TakeGone returns the slabs that the client has mapped and that will not be reused, each once.
func (p *Slabs) TakeGone() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := p.gone
	p.gone = nil
	return gone
}

// dropUnused removes slabs that have been free for slabTime.
func (p *Slabs) dropUnused() {
	p.mu.Lock()
	defer p.unlock()
	now := time.Now()
	for {
		oldest := p.leastRecentLocked()
		if oldest == nil {
			p.sweep = nil
			return
		}
		if left := slabTime - now.Sub(oldest.freed); left > 0 {
			p.sweep.Reset(left)
			return
		}
		p.removeLocked(oldest)
	}
}

// Trim removes all free slabs and returns their size in bytes. The memory is freed when the client has unmapped it too.
func (p *Slabs) Trim() (bytes int64) {
	p.mu.Lock()
	defer p.unlock()
	for s := p.leastRecentLocked(); s != nil; s = p.leastRecentLocked() {
		bytes += s.class
		p.removeLocked(s)
	}
	return bytes
}

// Return ends the loans of slabs. Slabs in returned may be reused, slabs in dropped may not. If the client does not
// have a slab, Return processes the others and returns an error for the first such slab.
func (p *Slabs) Return(returned, dropped []uint64) (err error) {
	if len(returned) == 0 && len(dropped) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.unlock()
	for i, number := range slices.Concat(returned, dropped) {
		s := p.byNumber[number]
		if s == nil || !s.lent {
			if err == nil {
				err = fmt.Errorf("%w: slab %d is returned, but not lent to this client", status.ErrInvalid, number)
			}
			continue
		}
		s.lent = false
		if i >= len(returned) {
			s.spent, s.mapped = true, false
		}
		p.reclaimLocked(s)
	}
	return err
}

// Use returns the number and the size of the slabs.
func (p *Slabs) Use() (count int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byNumber), p.bytes
}

// Close removes all slabs that are not in use, and the others when their use ends.
func (p *Slabs) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, s := range p.byNumber {
		s.lent = false
		p.reclaimLocked(s)
	}
	if p.sweep != nil {
		p.sweep.Stop()
	}
}
