package grpcguard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// The transport keeps an answer until its client has read it, also after the call has ended. A call therefore counts until the
// end of its answer is written, and is reset if its client reads nothing of it for the grace of the rate.

const (
	frameReset     = 3
	frameWindow    = 8
	flagEndStream  = 1
	resetBytes     = frameHeaderBytes + 4
	drainTime      = time.Second // for the transport to release the answers of a lost connection
	minAnswerGrace = time.Second // the least time in which a client reads a part of its answer
)

// outgoing follows the frames that the server sends.
type outgoing struct {
	header [frameHeaderBytes]byte
	have   int // bytes of header
	left   int // remaining bytes of the payload
}

// scan processes the next bytes of the connection. It calls data for parts of messages, and wrote for each frame of an
// answer.
func (f *outgoing) scan(p []byte, data func(id uint32, p []byte), wrote func(id uint32, last bool)) {
	for len(p) > 0 {
		id := binary.BigEndian.Uint32(f.header[5:]) &^ (1 << 31)
		if f.left > 0 {
			n := min(f.left, len(p))
			if f.header[3] == frameData {
				data(id, p[:n])
			}
			f.left -= n
			p = p[n:]
			if f.left == 0 {
				f.end(id, wrote)
			}
			continue
		}
		n := copy(f.header[f.have:], p)
		f.have += n
		if p = p[n:]; f.have < frameHeaderBytes {
			return
		}
		f.have = 0
		if f.left = int(binary.BigEndian.Uint32(f.header[:]) >> 8); f.left == 0 {
			f.end(binary.BigEndian.Uint32(f.header[5:])&^(1<<31), wrote)
		}
	}
}

// end ends a frame.
func (f *outgoing) end(id uint32, wrote func(id uint32, last bool)) {
	switch f.header[3] {
	case frameData, frameHeaders:
		wrote(id, f.header[4]&flagEndStream != 0)
	case frameReset:
		wrote(id, true)
	}
}

// sent counts the messages of an answer.
type sent struct {
	begun, written atomic.Int64 // messages given to the transport, and written
	ended          atomic.Bool  // the handler has returned
	progress       atomic.Int64 // when a part of the answer was written, or the first part began to wait

	header [messageHeaderBytes]byte // of the current message; used only by the writing goroutine, as have and left
	have   int
	left   int64
}

// waits reports whether a part of the answer is not written.
func (a *sent) waits() bool { return a.ended.Load() || a.begun.Load() > a.written.Load() }

// begin records a message, or the end, that will be written.
func (a *sent) begin(end bool) {
	if !a.waits() {
		a.progress.Store(time.Now().UnixNano())
	}
	if end {
		a.ended.Store(true)
	} else {
		a.begun.Add(1)
	}
}

// unread reports whether a part of the answer waits and nothing was written for the grace.
func (a *sent) unread(now time.Time, grace time.Duration) bool {
	return a.waits() && now.UnixNano()-a.progress.Load() > int64(grace)
}

// add processes bytes that are written.
func (a *sent) add(p []byte) {
	a.progress.Store(time.Now().UnixNano())
	for len(p) > 0 {
		if a.left == 0 {
			n := copy(a.header[a.have:], p)
			a.have += n
			if p = p[n:]; a.have < messageHeaderBytes {
				return
			}
			a.have = 0
			a.left = int64(binary.BigEndian.Uint32(a.header[1:]))
		}
		n := min(a.left, int64(len(p)))
		a.left -= n
		p = p[n:]
		if a.left == 0 {
			a.written.Add(1)
		}
	}
}

// expect records that the answer of a call will be written. It returns false if the connection is lost.
func (c *conn) expect(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return false
	}
	if c.answers == nil {
		c.answers = make(map[uint32]*stream)
	}
	c.answers[s.id] = s
	return true
}

// wrote records that a part of an answer is written.
func (c *conn) wrote(id uint32, last bool) {
	c.mu.Lock()
	s := c.answers[id]
	if last {
		delete(c.answers, id)
		if len(c.answers) == 0 && c.drained != nil {
			close(c.drained)
			c.drained = nil
		}
	}
	c.mu.Unlock()
	if s != nil && last {
		s.leave()
	}
}

// wroteData records that a part of a message is written.
func (c *conn) wroteData(id uint32, p []byte) {
	c.mu.Lock()
	s := c.answers[id]
	c.mu.Unlock()
	if s != nil {
		s.answer.add(p)
	}
}

// cancelled records that the client has reset a stream: nothing more is written to it.
func (c *conn) cancelled(id uint32) {
	if s := c.find(id); s != nil {
		s.mu.Lock()
		s.cancelled = true
		s.mu.Unlock()
	}
	c.wrote(id, true)
}

// reset makes the transport end a stream and release its answer, whatever the client does: Read returns a frame that is an
// error of the stream.
func (c *conn) reset(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.injectLocked(id)
	c.interrupted = true
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // fails for a closed connection, whose answers Read ends
}

// injectLocked adds a window update of 0 bytes to what Read returns (RFC 9113, section 6.9).
func (c *conn) injectLocked(id uint32) {
	frame := make([]byte, resetBytes)
	frame[2], frame[3] = resetBytes-frameHeaderBytes, frameWindow
	binary.BigEndian.PutUint32(frame[5:], id)
	c.injected = append(c.injected, frame...)
}

// takeInjected copies frames of reset to p.
func (c *conn) takeInjected(p []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(p, c.injected)
	c.injected = c.injected[n:]
	return n
}

// wasInterrupted reports whether reset ended a read, and permits the next one.
func (c *conn) wasInterrupted(err error) bool {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.interrupted {
		return false
	}
	c.interrupted = false
	_ = c.Conn.SetReadDeadline(time.Time{}) // fails for a closed connection, as the next read does
	return true
}

// lose ends all calls of a connection whose client has left, before the transport learns that: it would leave the memory of
// answers to the garbage collector. It reports whether Read has frames to return.
func (c *conn) lose() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return false
	}
	c.lost = true
	if len(c.answers) == 0 {
		return false
	}
	for id := range c.answers {
		c.injectLocked(id)
	}
	c.drained = make(chan struct{})
	c.draining = c.drained
	return true
}

// drain waits until the transport has ended the calls of a lost connection, and forgets those that it did not end.
func (c *conn) drain() {
	if c.draining != nil {
		timer := time.NewTimer(drainTime)
		defer timer.Stop()
		select {
		case <-c.draining:
		case <-timer.C:
		}
		c.draining = nil
	}
	c.forgetAnswers()
}

// forgetAnswers ends the accounts of all answers.
func (c *conn) forgetAnswers() {
	c.mu.Lock()
	c.lost = true
	ids := make([]uint32, 0, len(c.answers))
	for id := range c.answers {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for _, id := range ids {
		c.wrote(id, true)
	}
}

// checkAnswers resets the calls whose clients do not read.
func (c *conn) checkAnswers(now time.Time, grace time.Duration) {
	if grace <= 0 {
		return
	}
	c.mu.Lock()
	answers := make([]*stream, 0, len(c.answers))
	for _, s := range c.answers {
		answers = append(answers, s)
	}
	c.mu.Unlock()
	grace = max(grace, minAnswerGrace)
	late := slices.DeleteFunc(answers, func(s *stream) bool { return !s.answer.unread(now, grace) })
	for _, s := range late {
		if !s.reset.IsZero() {
			if now.Sub(s.reset) > grace {
				_ = c.Close() // best effort: the client does not finish a frame, so that the reset did not arrive
			}
			continue
		}
		s.reset = now
		c.edge.Stalled()
		s.call.Fail(fmt.Errorf("%w: the client does not read its answer: see --stall", admission.ErrSlow))
		c.reset(s.id)
	}
}
