package wire

import (
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// ringEnv is the environment variable that disables rings for a process if it is "off".
const ringEnv = "SHARED_TENSOR_RING"

// ringFrameBytes is the maximum size of a body in a ring. Larger bodies gain nothing.
const ringFrameBytes = copyBytes

// ringAfter is the number of frames that a connection must receive before a ring is offered. Short connections do not
// need one.
const ringAfter = 16

// ringWithin is the time in which these frames must arrive. If frames arrive slowly one at a time, each finds a
// sleeping peer. Waking it costs as much as sending the frame, so the memory would be wasted.
const ringWithin = 160 * time.Millisecond

// maxDue is the number of outstanding bells at which the socket is read although the ring has data.
const maxDue = 8

// ringsHere reports whether this process may use rings. With one processor, polling never sees the peer's progress, and
// each bell costs as much as a frame.
var ringsHere = sync.OnceValue(func() bool {
	return os.Getenv(ringEnv) != "off" && min(runtime.GOMAXPROCS(0), runtime.NumCPU()) > 1
})

// ringBytes returns the size of a ring for a limit; negative means none.
func ringBytes(limit int) int {
	switch {
	case limit < 0 || !ringsHere():
		return -1
	case limit == 0:
		return ring.DefaultBytes
	}
	return ring.Fit(limit)
}

func init() {
	ring.Allow = func(conn any, offers bool) { conn.(*Conn).allowRing(offers) }
}

// allowRing lets the connection offer a ring to its peer once it has received enough frames, or accept the peer's. Only
// one side may offer. It is called before other goroutines receive frames.
func (c *Conn) allowRing(offers bool) {
	if c.limits.Ring > 0 {
		c.reader.allowRing(&c.writer, offers)
	}
}
