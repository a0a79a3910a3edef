package wire

import (
	"net"
	"sync/atomic"
	"time"
)

// stall ends the reading of a connection whose peer has begun a frame and does not complete it in time, however
// steadily it sends. Its timer is set when a read must wait within a frame, so a frame that comes as a whole costs
// none. It is not the socket's read deadline: that is the receiver's, to interrupt itself.
type stall struct {
	conn  *net.UnixConn
	limit time.Duration // 0 or less for none
	timer *time.Timer   // made by the first read that waits within a frame
	set   bool
	over  atomic.Bool // the time is over: the end of the stream that follows is ours
}

// begin sets the timer, if it is not set.
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

// complete stops the timer: all of the frame has come.
func (s *stall) complete() {
	if s.set {
		s.set = false
		s.timer.Stop()
	}
}

// end wakes the read that waits.
func (s *stall) end() {
	s.over.Store(true)
	_ = s.conn.CloseRead() // where it is closed, the read has ended
}
