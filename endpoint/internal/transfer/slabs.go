package transfer

import (
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
	// SlabsEach is how many slabs one session may have.
	SlabsEach = 64
	// slabTime is how long one that nobody uses is kept.
	slabTime = 3 * time.Second
	// leastSlabUnit is what sizes of slabs are multiples of.
	leastSlabUnit = 4 << 10
)

// Slabs is the memory of results of one session that is used again when its client has given it back: fresh memory
// costs more than all else that a call with a tensor takes, since each of its pages is made, zeroed and mapped, here
// and there. A slab never leaves its session, whose client may have it mapped as long as it likes. The zero value has
// none, and allocates as its devices do. It is safe for concurrent use.
//
// A slab is made while this process has memory in it, and away from its sending until the client returns it. It is free
// when it is neither.
type Slabs struct {
	mu     sync.Mutex
	by     map[uint64]*slab
	of     map[driver.Slab]*slab
	last   uint64 // number
	bytes  int64
	most   int64 // bytes; 0 allows none
	total  *SlabTotal
	wake   func() // is called when there is something in gone
	gone   []uint64
	sweep  *time.Timer // while something is free
	closed bool
}

// slab is one of them. Its fields are guarded by Slabs.mu.
type slab struct {
	number uint64
	device driver.Slabber
	class  int64 // its size
	memory driver.Slab
	handle driver.Handle // of it, without a descriptor, once it was exported
	made   bool
	away   bool
	mapped bool // by the client, under the number
	spent  bool // must not be used again
	freed  time.Time
}

// SlabTotal bounds the slabs of all sessions together, and counts what became of allocations.
type SlabTotal struct {
	// MostSlabs and MostBytes are the bounds.
	MostSlabs, MostBytes int64

	mu           sync.Mutex
	slabs, bytes int64
	// Reused counts results in slabs that were used before, Fresh those in new ones, Refused those for which there was
	// no room.
	Reused, Fresh, Refused atomic.Uint64
}

// Used is how many there are.
func (t *SlabTotal) Used() (slabs, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slabs, t.bytes
}

func (t *SlabTotal) take(bytes int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slabs >= t.MostSlabs || bytes > t.MostBytes-t.bytes {
		return false
	}
	t.slabs++
	t.bytes += bytes
	return true
}

func (t *SlabTotal) give(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slabs--
	t.bytes -= bytes
}

// Allow sets how many bytes of slabs there may be, and what bounds those of all sessions. wake is called, on any
// goroutine, when there is something for Gone to tell.
func (p *Slabs) Allow(bytes int64, total *SlabTotal, wake func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most, p.total, p.wake = max(bytes, 0), total, wake
}

// allowed reports whether there may be any.
func (p *Slabs) allowed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most > 0 && !p.closed
}

// Device is dev with the session's slabs for memory: a device that allocates, and whose memory is dev's. It is dev
// itself where there are no slabs.
func (p *Slabs) Device(dev driver.Device) driver.Device {
	if slabber, can := dev.(driver.Slabber); can && p.allowed() {
		return slabDevice{slabber, p}
	}
	return dev
}

// slabDevice allocates slabs. It is comparable, as devices are.
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

// Synchronize implements driver.Syncer.
func (d slabDevice) Synchronize() error {
	if s, can := d.Slabber.(driver.Syncer); can {
		return s.Synchronize()
	}
	return nil
}

// slabClass is the size of the slab that memory of so many bytes is of: the next of eight sizes between two powers of
// two.
func slabClass(bytes int64) int64 {
	unit := max(int64(1)<<max(bits.Len64(uint64(bytes-1))-4, 0), leastSlabUnit)
	if bytes > 1<<62-unit {
		return bytes
	}
	return (bytes + unit - 1) / unit * unit
}

// alloc returns memory in a slab, or fresh memory where no slab is to be had.
func (p *Slabs) alloc(dev driver.Slabber, bytes int64, zeroed bool) (driver.Memory, error) {
	if bytes <= 0 {
		return dev.Alloc(bytes)
	}
	s, again := p.take(dev, slabClass(bytes))
	if s == nil {
		return dev.Alloc(bytes)
	}
	mem, err := p.use(s, bytes)
	if err != nil {
		p.ended(s, false)
		return dev.Alloc(bytes)
	}
	if again && zeroed {
		if err := zero(mem); err != nil {
			mem.Close()
			return dev.Alloc(bytes)
		}
	}
	return mem, nil
}

// use makes the memory of a slab that was taken.
func (p *Slabs) use(s *slab, bytes int64) (driver.Memory, error) {
	if s.memory == nil {
		memory, err := s.device.AllocSlab(s.class)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		s.memory = memory
		p.of[memory] = s
		p.mu.Unlock()
	}
	return s.memory.Use(bytes, func(clean bool) { p.ended(s, clean) })
}

// zero makes all bytes of mapped memory 0.
func zero(mem driver.Memory) error {
	mapped, ok := mem.(driver.Mapped)
	if !ok {
		return fmt.Errorf("%w: memory that is not mapped", status.ErrInvalid)
	}
	data, unpin, err := mapped.Pin(true)
	if err != nil {
		return err
	}
	defer unpin()
	clear(data)
	return nil
}

// take returns a slab that is made from here on, and whether it was used before: the one that was freed last, whose
// bytes are the most likely to be in the processor's caches. It is nil where there is no room for another.
func (p *Slabs) take(dev driver.Slabber, class int64) (s *slab, again bool) {
	p.mu.Lock()
	defer p.unlock()
	if p.closed || class > p.most {
		return nil, false
	}
	for _, e := range p.by {
		if e.free() && e.class == class && e.device == dev && (s == nil || e.freed.After(s.freed)) {
			s = e
		}
	}
	if s != nil {
		s.made = true
		p.total.Reused.Add(1)
		return s, true
	}
	for len(p.by) >= SlabsEach || p.bytes > p.most-class {
		oldest := p.oldestLocked()
		if oldest == nil {
			p.total.Refused.Add(1)
			return nil, false
		}
		p.removeLocked(oldest)
	}
	if !p.total.take(class) {
		p.total.Refused.Add(1)
		return nil, false
	}
	p.total.Fresh.Add(1)
	if p.by == nil {
		p.by, p.of = map[uint64]*slab{}, map[driver.Slab]*slab{}
	}
	p.last++
	s = &slab{number: p.last, device: dev, class: class, made: true}
	p.by[s.number] = s
	p.bytes += class
	return s, false
}

func (s *slab) free() bool { return !s.made && !s.away && !s.spent }

// oldestLocked is the free slab that was used the longest time ago; nil where none is free.
func (p *Slabs) oldestLocked() (oldest *slab) {
	for _, s := range p.by {
		if s.free() && (oldest == nil || s.freed.Before(oldest.freed)) {
			oldest = s
		}
	}
	return oldest
}

// ended notes that this process has no memory of a slab any more. Of one that is not clean somebody may.
func (p *Slabs) ended(s *slab, clean bool) {
	p.mu.Lock()
	defer p.unlock()
	s.made = false
	s.spent = s.spent || !clean
	p.settleLocked(s)
}

// settleLocked sees to a slab of which something has ended.
func (p *Slabs) settleLocked(s *slab) {
	switch {
	case s.made:
	case p.closed || s.spent && !s.away:
		p.removeLocked(s)
	case s.away:
	default:
		s.freed = time.Now()
		if p.sweep == nil {
			p.sweep = time.AfterFunc(slabTime, p.dropUnused)
		}
	}
}

// removeLocked gives a slab back to its device, which nobody in this process has memory of.
func (p *Slabs) removeLocked(s *slab) {
	if p.by[s.number] != s {
		return
	}
	delete(p.by, s.number)
	p.bytes -= s.class
	p.total.give(s.class)
	if s.memory != nil {
		delete(p.of, s.memory)
		_ = s.memory.Close() // nobody is left to be told
	}
	if s.mapped && !p.closed {
		p.gone = append(p.gone, s.number)
	}
}

// unlock ends what may have made slabs go.
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

// Gone are the slabs that the client has mapped and that are not used again, each once.
func (p *Slabs) Gone() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := p.gone
	p.gone = nil
	return gone
}

// dropUnused drops what has been free for a while.
func (p *Slabs) dropUnused() {
	p.mu.Lock()
	defer p.unlock()
	now := time.Now()
	for {
		oldest := p.oldestLocked()
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

// Trim drops all that is free and returns how many bytes that was. The memory is free when the client has unmapped it
// too, as it is told.
func (p *Slabs) Trim() (bytes int64) {
	p.mu.Lock()
	defer p.unlock()
	for s := p.oldestLocked(); s != nil; s = p.oldestLocked() {
		bytes += s.class
		p.removeLocked(s)
	}
	return bytes
}

// Return takes slabs back from the client: those that may be used again, and those that must not. The error is that of
// the first that the client does not have; the others are taken back.
func (p *Slabs) Return(returned, dropped []uint64) (err error) {
	if len(returned) == 0 && len(dropped) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.unlock()
	for i, number := range slices.Concat(returned, dropped) {
		s := p.by[number]
		if s == nil || !s.away {
			if err == nil {
				err = fmt.Errorf("%w: slab %d is given back, which this client does not have", status.ErrInvalid, number)
			}
			continue
		}
		s.away = false
		if i >= len(returned) {
			s.spent, s.mapped = true, false
		}
		p.settleLocked(s)
	}
	return err
}

// Use is how much there is.
func (p *Slabs) Use() (count int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.by), p.bytes
}

// Close gives back all that nobody in this process has memory of, and the rest when that ends.
func (p *Slabs) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, s := range p.by {
		s.away = false
		p.settleLocked(s)
	}
	if p.sweep != nil {
		p.sweep.Stop()
	}
}
