package wire

import (
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// RingEnv is the environment variable that keeps a process from using rings where it is "off".
const RingEnv = "SHARED_TENSOR_RING"

// ringFrameBytes is the largest body that goes by a ring. What is larger gains nothing by it.
const ringFrameBytes = copyBytes

// ringAfter is how many frames a connection must have brought before rings are offered: those that ask one thing and
// leave are better off without.
const ringAfter = 16

// ringWithin is the time in which they must have come. Of frames that come one at a time, with a while between them,
// each finds a peer that sleeps: to wake it costs as much as the frame itself would, and the memory is better spent on
// others.
const ringWithin = 160 * time.Millisecond

// maxDue is how many bells may be on their way before the socket is read though the ring has something.
const maxDue = 8

// ringsHere reports whether this process may use rings. With one processor a side never sees what the other does while
// it looks, and each bell costs what the frame itself would.
var ringsHere = sync.OnceValue(func() bool {
	return os.Getenv(RingEnv) != "off" && min(runtime.GOMAXPROCS(0), runtime.NumCPU()) > 1
})

// ringBytes is the size of a ring that a limit stands for; negative for none.
func ringBytes(limit int) int {
	switch {
	case limit < 0 || !ringsHere():
		return -1
	case limit == 0:
		return ring.DefaultBytes
	}
	return ring.Fit(limit)
}

// Rings reports whether a connection with these limits may use a ring: small frames without descriptors then go through
// memory that both processes have mapped, and the socket wakes a peer that sleeps, carries everything else, and tells
// the end. Whoever speaks for both sides, as a handshake does, calls [Conn.OfferRing] on one and [Conn.AcceptRing] on
// the other.
func (l Limits) Rings() bool { return l.withDefaults().Ring > 0 }

// RingBytes is how much memory the rings of one connection take; 0 where there are none.
func (l Limits) RingBytes() int {
	if l = l.withDefaults(); l.Ring <= 0 {
		return 0
	}
	return ring.Bytes(l.Ring)
}

// OfferRing lets the connection offer a ring to its peer, which has called [Conn.AcceptRing], once it has seen enough
// frames. Only one side may. Call it before frames are received by other goroutines.
func (c *Conn) OfferRing() {
	if c.limits.Ring > 0 {
		c.reader.allowRing(&c.writer, true)
	}
}

// AcceptRing lets the connection take the ring that its peer offers.
func (c *Conn) AcceptRing() {
	if c.limits.Ring > 0 {
		c.reader.allowRing(&c.writer, false)
	}
}
