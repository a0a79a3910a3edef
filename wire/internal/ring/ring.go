package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Layout. Each of the two rings has its indices in the first page and its bytes behind it. Numbers are those of the
// host, indices count bytes since the beginning and are never reset; the offset of a byte is its index modulo the size.
const (
	// pageBytes is what the indices of both rings take.
	pageBytes = 4096
	// indexBytes is what the indices of one ring take. Each has a cache line for itself, and the next one, which
	// processors fetch along with it.
	indexBytes   = 512
	tailOffset   = 0   // u64, written by the producer: how many bytes there were
	headOffset   = 128 // u64, written by the consumer: how many of them it has taken
	asleepOffset = 256 // u32, set to 1 by the consumer that sleeps and to 0 by whoever wakes it
)

// Sizes of one ring, in bytes: powers of two.
const (
	MinBytes     = 4 << 10
	MaxBytes     = 1 << 20
	DefaultBytes = 32 << 10
)

// ErrCorrupt is an index that the peer cannot have written by the rules.
var ErrCorrupt = errors.New("the ring's indices make no sense")

// Which is one of the two rings of a memory.
type Which int

// The rings are named by who writes: the process that was passed the memory has the first one, the process that made
// it the second one.
const (
	First Which = iota
	Second
)

// shared is one ring as it lies in the memory.
type shared struct {
	tail, head *atomic.Uint64
	asleep     *atomic.Uint32
	data       []byte // a power of two bytes
}

func (s *shared) size() uint64 { return uint64(len(s.data)) }

// copyIn copies p to the place of index at.
func (s *shared) copyIn(at uint64, p []byte) {
	n := copy(s.data[at&(s.size()-1):], p)
	copy(s.data, p[n:])
}

// copyOut copies the bytes from index at to p.
func (s *shared) copyOut(at uint64, p []byte) {
	n := copy(p, s.data[at&(s.size()-1):])
	copy(p[n:], s.data)
}

// Producer writes one ring. It is for one goroutine at a time.
type Producer struct {
	shared
	tail    uint64 // as published
	head    uint64 // as the consumer has said, within bounds
	unheard bool   // something was put since MustWake was asked last
}

// Size is how many bytes the ring has.
func (p *Producer) Size() int { return len(p.data) }

// Free is how many bytes there is room for.
func (p *Producer) Free() (int, error) {
	head := p.shared.head.Load()
	if head-p.head > p.tail-p.head { // it went back, or is ahead of what was written
		return 0, fmt.Errorf("%w: %d bytes were taken of %d, and %d before", ErrCorrupt, head, p.tail, p.head)
	}
	p.head = head
	return int(p.size() - (p.tail - p.head)), nil
}

// Put writes a and b, one behind the other, and lets the consumer see both at once. It writes nothing and is false
// where less than keep bytes would be left free.
func (p *Producer) Put(a, b []byte, keep int) (bool, error) {
	n := len(a) + len(b)
	if need := uint64(n + keep); p.size()-(p.tail-p.head) < need { // by what is known of head
		free, err := p.Free()
		if err != nil || uint64(free) < need {
			return false, err
		}
	}
	p.copyIn(p.tail, a)
	p.copyIn(p.tail+uint64(len(a)), b)
	p.tail += uint64(n)
	p.shared.tail.Store(p.tail)
	p.unheard = true
	return true, nil
}

// MustWake reports whether the consumer sleeps and has not been woken for what was put. The caller then wakes it. It is
// true at most once for each time that something was put, whatever the consumer says.
func (p *Producer) MustWake() bool {
	if !p.unheard {
		return false
	}
	p.unheard = false
	return p.asleep.Load() != 0 && p.asleep.Swap(0) != 0
}

// Consumer reads one ring. It is for one goroutine at a time.
type Consumer struct {
	shared
	head     uint64 // as published
	tail     uint64 // as the producer has said, within bounds
	ended    bool   // tail is what it was at the end
	sleeping bool
	due      int // how often the producer may still wake this side
}

// Ready reports whether there is something to be taken, or the producer has broken the rules. It costs little.
func (c *Consumer) Ready() bool {
	return c.tail != c.head || !c.ended && c.shared.tail.Load() != c.head
}

// Available is how many bytes there are to be taken.
func (c *Consumer) Available() (int, error) {
	if c.tail == c.head && !c.ended {
		if err := c.look(); err != nil {
			return 0, err
		}
	}
	return int(c.tail - c.head), nil
}

// look believes tail within bounds.
func (c *Consumer) look() error {
	tail := c.shared.tail.Load()
	if n := tail - c.head; n > c.size() || n < c.tail-c.head { // more than there is room for, or less than before
		return fmt.Errorf("%w: %d bytes were put, %d were taken, and the ring has %d", ErrCorrupt, tail, c.head, c.size())
	}
	c.tail = tail
	return nil
}

// Peek copies bytes from skip on, which must be available, without taking them.
func (c *Consumer) Peek(skip int, p []byte) { c.copyOut(c.head+uint64(skip), p) }

// Take gives room for n bytes, which must be available, back to the producer.
func (c *Consumer) Take(n int) {
	c.head += uint64(n)
	c.shared.head.Store(c.head)
}

// End notes that the producer is gone: what it has put until now is available, and nothing that comes later.
func (c *Consumer) End() error {
	if c.ended {
		return nil
	}
	c.ended = true
	return c.look()
}

// Sleep says that this side is about to sleep, and wants to be woken for what comes. It is false, and nothing is said,
// where something is there already.
func (c *Consumer) Sleep() bool {
	c.Wake()
	c.sleeping = true
	c.due++
	c.asleep.Store(1)
	if c.Ready() {
		c.Wake()
		return false
	}
	return true
}

// Wake says that this side does not sleep any more. Where the producer has seen it asleep before, its signal is on its
// way.
func (c *Consumer) Wake() {
	if c.sleeping {
		c.sleeping = false
		if c.asleep.Swap(0) != 0 {
			c.due--
		}
	}
}

// Due is how many signals of the producer may be on their way.
func (c *Consumer) Due() int { return c.due }

// Signalled notes a signal of the producer and reports whether it was due.
func (c *Consumer) Signalled() bool {
	if c.due == 0 {
		return false
	}
	c.due--
	return true
}
