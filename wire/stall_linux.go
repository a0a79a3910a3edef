package wire

import (
	"net"
	"sync/atomic"
	"time"
)

// stall ends the reading of a connection whose peer has begun a frame and does not complete it in time, however
// steadily it sends. The timer is set when a read must wait within a frame, so a frame that arrives whole costs none.
// The socket's read deadline is not used; the receiver uses it to interrupt itself.
type stall struct {
	conn  *net.UnixConn
	limit time.Duration // 0 or less means no limit
	timer *time.Timer   // created by the first read that waits within a frame
	set   bool
	over  atomic.Bool // the time has passed: this side caused the end of the stream
}

// begin starts the timer if it is not running.
func (s *stall) begin() {
	switch {
	case s.set || s.limit <= 0:
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(s.limit, s.end)
	default:
		s.timer.Reset(s.limit)
	}
	s.set = true
}

// complete stops the timer: the whole frame has arrived.
func (s *stall) complete() {
	if s.set {
		s.set = false
		s.timer.Stop()
	}
}

// end wakes the waiting read.
func (s *stall) end() {
	s.over.Store(true)
	_ = s.conn.CloseRead() // on a closed connection the read has ended
}
