package transfer

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// minSlabUnit is the minimum granularity of slab sizes.
const minSlabUnit = 4 << 10

// Slabs reuses the memory of one session's results after the client has returned it. Fresh memory costs more than the
// rest of a call with a tensor, because both processes map its pages and the kernel zeroes them. A slab is used by a
// single session, whose client may keep it mapped. The zero value has no slabs and allocates from the device. It is
// safe for concurrent use.
//
// A slab is in use while this process holds memory in it, lent while the client has it, and free otherwise.
//
// Slabs also numbers the memory of results that may be sent again and are not written ([Sent]), so that the client maps
// it once. Such memory is lent from each answer that names it until the client has processed the answer.
type Slabs struct {
	mappings[*slab]
	byMemory  map[driver.Slab]*slab
	byStorage map[uint64]*slab // by the id of a storage of a result that may be sent again
	seen      []uint64         // ids of such storages that were sent once; the newest is last
	repeats   bool             // the client keeps such memory mapped
	last      uint64           // number of the newest slab
	wake      func()           // called when gone is not empty
	gone      []uint64
}

// slab is one unit of memory with a number. Its fields are guarded by Slabs.mu. It is busy while it is in use or lent.
// Memory of a result that may be sent again has sent and storage instead of device and memory.
type slab struct {
	mapping // bytes is the size of the slab, a class of sizes
	slabs   *Slabs
	device  driver.Slabber
	memory  driver.Slab
	handle  driver.Handle // without its descriptor; set by the first export
	sent    *Sent
	storage uint64
	inUse   bool
	loans   int   // answers that carried it and that the client has not returned; at most 1 of a slab
	mapped  bool  // the client has mapped it under the number
	spent   bool  // must not be reused
	seen    bool  // the client received the bytes of the current or last use
	unsent  bool  // the client did not receive the bytes of an earlier use
	filled  int64 // number of leading bytes that may not be zero
}

// Allow sets the maximum of bytes in slabs and the limits shared by all sessions. wake is called, on any goroutine,
// when TakeGone has something to return.
func (p *Slabs) Allow(bytes int64, total *MappingTotal, wake func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most, p.total, p.wake, p.unlock = max(bytes, 0), total, wake, p.unlockAndWake
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
		memory, err := s.device.AllocSlab(s.bytes)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		s.memory = memory
		p.byMemory[memory] = s
		p.mu.Unlock()
	}
	p.mu.Lock()
	s.seen, s.filled = false, max(s.filled, bytes)
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
	defer p.unlockAndWake()
	if p.closed || class > p.most {
		return nil, false
	}
	for _, e := range p.byNumber {
		if !e.busy && e.bytes == class && e.device == dev && (s == nil || e.used.After(s.used)) {
			s = e
		}
	}
	if s != nil {
		s.inUse, s.busy = true, true
		p.total.Reused.Add(1)
		return s, true
	}
	if !p.reserveLocked(class) {
		p.total.Refused.Add(1)
		return nil, false
	}
	p.total.Fresh.Add(1)
	if p.byMemory == nil {
		p.byMemory = map[driver.Slab]*slab{}
	}
	p.last++
	s = &slab{mapping: mapping{number: p.last, bytes: class, busy: true}, slabs: p, device: dev, inUse: true}
	p.addLocked(s)
	return s, false
}

// useEnded marks a slab as no longer in use. If clean is false, it may still be mapped elsewhere and is not reused.
func (p *Slabs) useEnded(s *slab, clean bool) {
	p.mu.Lock()
	defer p.unlockAndWake()
	s.inUse = false
	s.spent = s.spent || !clean
	s.unsent = s.unsent || !s.seen
	p.reclaimLocked(s)
}

// reclaimLocked frees or removes a slab after a use or a loan has ended.
func (p *Slabs) reclaimLocked(s *slab) {
	switch {
	case s.inUse:
	case p.closed || s.spent && s.loans == 0:
		p.removeLocked(s)
	case s.loans > 0:
	default:
		p.idleLocked(s)
	}
}

// release closes a slab that was removed. The client unmaps it too.
func (s *slab) release() {
	if s.memory != nil {
		delete(s.slabs.byMemory, s.memory)
		_ = s.memory.Close() // best effort
	}
	if s.sent != nil {
		s.slabs.forgetLocked(s)
	}
	if s.mapped && !s.slabs.closed {
		s.slabs.gone = append(s.slabs.gone, s.number)
	}
}

// unlockAndWake unlocks p.mu and calls wake if slabs were removed.
func (p *Slabs) unlockAndWake() {
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

// Trim removes all free slabs and numbers, and returns the size of the slabs in bytes. The memory is freed when the client
// has unmapped it too.
func (p *Slabs) Trim() (bytes int64) {
	p.mu.Lock()
	defer p.unlockAndWake()
	for {
		s, ok := p.leastRecentLocked()
		if !ok {
			return bytes
		}
		if s.sent == nil {
			bytes += s.bytes
		}
		p.removeLocked(s)
	}
}

// Return ends the loans of slabs. Slabs in returned may be reused, slabs in dropped may not. If the client does not
// have a slab, Return processes the others and returns an error for the first such slab.
func (p *Slabs) Return(returned, dropped []uint64) (err error) {
	if len(returned) == 0 && len(dropped) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.unlockAndWake()
	for i, number := range slices.Concat(returned, dropped) {
		s := p.byNumber[number]
		if s == nil || s.loans == 0 {
			if err == nil {
				err = fmt.Errorf("%w: slab %d is returned, but not lent to this client", status.ErrInvalid, number)
			}
			continue
		}
		s.loans--
		if i >= len(returned) {
			s.spent, s.mapped = true, false
		} else if s.sent != nil {
			s.mapped = true
		}
		p.reclaimLocked(s)
	}
	return err
}

// Close removes all slabs that are not in use, and the others when their use ends.
func (p *Slabs) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked()
	for _, s := range p.byNumber {
		s.loans = 0
		p.reclaimLocked(s)
	}
}
