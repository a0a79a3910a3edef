// Package ring implements two byte rings in memory shared by two processes, one for each direction.
//
//	m, file, err := ring.New(32 << 10)    // one process creates the memory and passes file
//	out, in := m.Producer(ring.Second), m.Consumer(ring.First)
//	m, err = ring.Open(fd)                // the other one maps it
//
// The peer can change the memory at any time. Indices are validated against local state and then kept in this process.
// Bytes are copied once and parsed afterwards. Whatever the peer does, a [Producer] and a [Consumer] never access bytes
// outside the memory, never wait and never loop. An invalid index is [ErrCorrupt].
//
// Neither of them sleeps or wakes the peer. A consumer announces its sleep in the memory ([Consumer.Sleep]). A producer
// learns from [Producer.MustWake] that it must wake the consumer; the caller does so.
//
// # Memory order
//
// The race detector cannot observe another process, so this is the argument for the order of accesses. Each index has
// one writer. A producer copies bytes and then stores tail; a consumer loads tail and then copies the bytes. A consumer
// copies bytes and then stores head; a producer loads head and then overwrites them. Loads and stores of package
// sync/atomic are sequentially consistent, which includes acquire and release. In addition, a producer stores tail and
// then loads asleep, and a consumer stores asleep and then loads tail. Of two such pairs at least one load sees the
// other store, so a consumer never sleeps unnoticed while the ring has data. With acquire and release alone, both loads
// could see old values.
package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Layout. The first page holds the indices of both rings; their bytes follow. Numbers are in host byte order. Indices
// count bytes since the start and are never reset; the offset of a byte is its index modulo the size.
const (
	// pageBytes is the size of the indices of both rings.
	pageBytes = 4096
	// indexBytes is the size of one ring's indices. Each index has its own cache line and the next one, which
	// processors fetch with it.
	indexBytes   = 512
	tailOffset   = 0   // u64, written by the producer: bytes produced
	headOffset   = 128 // u64, written by the consumer: bytes consumed
	asleepOffset = 256 // u32, set to 1 by the consumer before it sleeps, to 0 by the side that wakes it
)

// Sizes of one ring in bytes: powers of two.
const (
	MinBytes     = 4 << 10
	MaxBytes     = 1 << 20
	DefaultBytes = 32 << 10
)

// Allow lets a *wire.Conn offer or accept a ring. Package wire sets it. Package message calls it after the handshake.
var Allow func(conn any, offers bool)

// ErrCorrupt means that an index has a value that a correct peer cannot have written.
var ErrCorrupt = errors.New("the ring's indices make no sense")

// Which selects one of the two rings of a memory.
type Which int

// The rings are named by their writer. First is written by the process that received the memory, Second by its creator.
const (
	First Which = iota
	Second
)

// shared is one ring in the memory.
type shared struct {
	tail, head *atomic.Uint64
	asleep     *atomic.Uint32
	data       []byte // its length is a power of two
}

func (s *shared) size() uint64 { return uint64(len(s.data)) }

// copyIn copies p to index at.
func (s *shared) copyIn(at uint64, p []byte) {
	n := copy(s.data[at&(s.size()-1):], p)
	copy(s.data, p[n:])
}

// copyOut copies bytes starting at index at to p.
func (s *shared) copyOut(at uint64, p []byte) {
	n := copy(p, s.data[at&(s.size()-1):])
	copy(p[n:], s.data)
}

// Producer writes one ring. It must be used by one goroutine at a time.
type Producer struct {
	shared
	tail    uint64 // published tail
	head    uint64 // head as last validated
	unheard bool   // data was put since the last call of MustWake
}

// Size returns the capacity of the ring in bytes.
func (p *Producer) Size() int { return len(p.data) }

// Free returns the number of bytes that fit.
func (p *Producer) Free() (int, error) {
	head := p.shared.head.Load()
	if head-p.head > p.tail-p.head { // head moved backwards, or beyond what was written
		return 0, fmt.Errorf("%w: %d bytes were taken of %d, and %d before", ErrCorrupt, head, p.tail, p.head)
	}
	p.head = head
	return int(p.size() - (p.tail - p.head)), nil
}

// Put writes a followed by b and publishes both at once. If fewer than keep bytes would remain free, it writes nothing
// and returns false.
func (p *Producer) Put(a, b []byte, keep int) (bool, error) {
	n := len(a) + len(b)
	if need := uint64(n + keep); p.size()-(p.tail-p.head) < need { // based on the last known head
		free, err := p.Free()
		if err != nil || uint64(free) < need {
			return false, err
		}
	}
	p.copyIn(p.tail, a)
	p.copyIn(p.tail+uint64(len(a)), b)
	p.tail += uint64(n)
	p.shared.tail.Swap(p.tail) // not Store: see Sleep
	p.unheard = true
	return true, nil
}

// MustWake reports whether the consumer sleeps and has not been woken for what was put. The caller then wakes it. It
// returns true at most once per put, whatever the consumer stores.
func (p *Producer) MustWake() bool {
	if !p.unheard {
		return false
	}
	p.unheard = false
	return p.asleep.Load() != 0 && p.asleep.Swap(0) != 0
}

// Consumer reads one ring. It must be used by one goroutine at a time.
type Consumer struct {
	shared
	head     uint64 // published head
	tail     uint64 // tail as last validated
	ended    bool   // tail is final
	sleeping bool
	due      int // number of signals that the producer may still send
}

// Ready reports whether data is available or the producer violated the protocol. It is cheap.
func (c *Consumer) Ready() bool {
	return c.tail != c.head || !c.ended && c.shared.tail.Load() != c.head
}

// Available returns the number of bytes available.
func (c *Consumer) Available() (int, error) {
	if c.tail == c.head && !c.ended {
		if err := c.look(); err != nil {
			return 0, err
		}
	}
	return int(c.tail - c.head), nil
}

// look loads tail and validates it.
func (c *Consumer) look() error {
	tail := c.shared.tail.Load()
	if n := tail - c.head; n > c.size() || n < c.tail-c.head { // beyond the ring's capacity, or less than before
		return fmt.Errorf("%w: %d bytes were put, %d were taken, and the ring has %d", ErrCorrupt, tail, c.head, c.size())
	}
	c.tail = tail
	return nil
}

// Peek copies available bytes starting at skip without consuming them.
func (c *Consumer) Peek(skip int, p []byte) { c.copyOut(c.head+uint64(skip), p) }

// Take consumes n available bytes.
func (c *Consumer) Take(n int) {
	c.head += uint64(n)
	c.shared.head.Store(c.head)
}

// End records that the producer is gone. Data put until now remains available; later data is ignored.
func (c *Consumer) End() error {
	if c.ended {
		return nil
	}
	c.ended = true
	return c.look()
}

// Sleep announces that this side is about to sleep and must be woken. It returns false, and announces nothing, if data
// is available.
//
// The producer writes tail and then reads asleep; this side writes asleep and then reads tail. One of them must see the
// other's write. With the race detector, Store only releases, so the read could come before the write; Swap prevents it.
// Without the race detector both are the same instruction on amd64.
func (c *Consumer) Sleep() bool {
	c.Wake()
	c.sleeping = true
	c.due++
	c.asleep.Swap(1)
	if c.Ready() {
		c.Wake()
		return false
	}
	return true
}

// Wake records that this side no longer sleeps. If the producer has seen it asleep, a signal is on its way.
func (c *Consumer) Wake() {
	if c.sleeping {
		c.sleeping = false
		if c.asleep.Swap(0) != 0 {
			c.due--
		}
	}
}

// Due returns the number of signals of the producer that may be on their way.
func (c *Consumer) Due() int { return c.due }

// Signalled records a signal of the producer and reports whether it was expected.
func (c *Consumer) Signalled() bool {
	if c.due == 0 {
		return false
	}
	c.due--
	return true
}
