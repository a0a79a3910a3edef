package wire

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// ringReader is the ring part of a reader. The peer sends one stream of frames. Each section of it is in the ring or on
// the socket, and a ring frame at its end announces that the next section is in the other.
type ringReader struct {
	in     *ring.Consumer // set while the stream is in the ring
	idle   *ring.Consumer // set while there is a ring and the stream is on the socket
	memory *ring.Memory

	writer  *writer // the other direction; nil if rings are not allowed
	offers  bool    // this side creates the memory
	frames  int     // frames received since began
	began   time.Time
	within  time.Duration // time within which the next frames must arrive before a ring is offered
	next    int
	charged int64
	end     error // why the socket ended, while the ring still has frames
}

// allowRing allows offering a ring to the peer, or accepting one.
func (r *reader) allowRing(w *writer, offers bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring.writer, r.ring.offers = w, offers
	r.ring.began, r.ring.within, r.ring.next = time.Now(), ringWithin, ringAfter
}

// closeRing unmaps the ring. The writer has been closed before.
func (r *reader) closeRing() {
	g := &r.ring
	if g.memory != nil {
		_ = g.memory.Close() // best effort
	}
	_ = r.limits.charge(ResourceRings, -g.charged)
	*g = ringReader{}
	r.src.ring = nil
}

// offerRing offers a ring to a peer that sent enough frames in a short time. If that fails or would wait, it is retried
// later; the connection works without it.
func (r *reader) offerRing() {
	g := &r.ring
	if !g.offers || g.memory != nil {
		return
	}
	if g.frames++; g.frames < g.next {
		return
	}
	now := time.Now()
	took := now.Sub(g.began)
	if g.frames, g.began = 0, now; took > g.within {
		return
	}
	g.next, g.within = 2*g.next, 2*g.within // for the next attempt
	bytes := int64(ring.Bytes(r.limits.Ring))
	if r.limits.charge(ResourceRings, bytes) != nil {
		return
	}
	memory, file, err := ring.New(r.limits.Ring)
	if err == nil {
		err = g.writer.sendRing(file)
		file.Close()
		if err != nil {
			_ = memory.Close() // best effort
		}
	}
	if err != nil {
		_ = r.limits.charge(ResourceRings, -bytes)
		return
	}
	g.memory, g.charged = memory, bytes
}

// handleRingFrame handles a ring frame or a bell from the socket, with its descriptors.
func (r *reader) handleRingFrame(h header) error {
	g := &r.ring
	r.src.frameDone()
	switch {
	case g.writer == nil:
		return fmt.Errorf("%w: a %s frame, and no ring was agreed on", ErrProtocol, h.kind)
	case h.kind == KindBell: // sent before the stream left the ring
		return r.bell()
	case h.files > 0:
		return r.acceptRing()
	case g.memory == nil:
		return fmt.Errorf("%w: the peer goes on in a ring that there is not", ErrProtocol)
	case r.announced > 0:
		return fmt.Errorf("%w: descriptors were sent ahead, and no frame follows them", ErrProtocol)
	}
	if g.idle == nil { // the peer has mapped it
		g.idle = g.memory.Consumer(ring.First)
		g.writer.useRing(g.memory.Producer(ring.Second))
	}
	g.in, g.idle = g.idle, nil
	return nil
}

// acceptRing maps the ring that arrived with the last header.
func (r *reader) acceptRing() error {
	g := &r.ring
	fds, lost := r.ahead, r.lost
	r.ahead, r.announced, r.lost = nil, 0, nil
	defer r.closeCounted(fds)
	switch {
	case g.offers || g.memory != nil:
		return fmt.Errorf("%w: a ring is offered that was not asked for", ErrProtocol)
	case lost != nil:
		return nil // it exceeds a budget; the connection continues without a ring
	}
	memory, err := ring.Open(fds[0])
	switch {
	case errors.Is(err, ring.ErrRefused):
		return fmt.Errorf("%w: the ring is %w", ErrProtocol, err)
	case err != nil:
		return nil // mapping failed; the connection continues without a ring
	}
	g.memory, g.idle = memory, memory.Consumer(ring.Second)
	g.writer.useRing(memory.Producer(ring.First))
	return nil
}

// ringFrame takes the next frame out of the ring. It returns false if the stream continues on the socket.
//
// The header is copied before it is parsed, and its length is checked against the published tail: data that the peer
// can change is read once.
func (r *reader) ringFrame() (Frame, bool, error) {
	g := &r.ring
	n, err := g.in.Available()
	for n == 0 && err == nil {
		if err := r.awaitRing(); err != nil {
			return Frame{}, false, err
		}
		n, err = g.in.Available()
	}
	if err != nil {
		return Frame{}, false, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if n < HeaderBytes {
		return Frame{}, false, fmt.Errorf("%w: %d bytes in the ring are no frame", ErrProtocol, n)
	}
	var head [HeaderBytes]byte
	g.in.Peek(0, head[:])
	h := parseHeader(head[:])
	if err := h.check(r.limits); err != nil {
		return Frame{}, false, err
	}
	switch {
	case r.announced > 0:
		return Frame{}, false, fmt.Errorf("%w: descriptors were sent ahead for %d, but what follows is in the ring", ErrProtocol, r.aheadID)
	case h.files > 0 || !h.kind.carries() && h.kind != KindRing || h.length > ringFrameBytes:
		return Frame{}, false, fmt.Errorf("%w: %s frame with %d bytes and %d descriptors in the ring", ErrProtocol, h.kind, h.length, h.files)
	case int(h.length) > n-HeaderBytes:
		return Frame{}, false, fmt.Errorf("%w: %s frame of %d bytes in the ring, of which %d are there", ErrProtocol, h.kind, h.length, n-HeaderBytes)
	case h.kind == KindRing:
		g.in.Take(HeaderBytes)
		if g.end != nil {
			return Frame{}, false, g.end
		}
		g.in, g.idle = nil, g.in
		return Frame{}, false, nil
	}
	body := make([]byte, h.length)
	g.in.Peek(HeaderBytes, body)
	g.in.Take(HeaderBytes + len(body))
	r.frames++
	return Frame{Kind: h.kind, ID: h.id, Body: body}, true, nil
}

// awaitRing waits until the ring has data. The socket delivers bells and the end meanwhile.
func (r *reader) awaitRing() error {
	g := &r.ring
	for {
		if err := r.takeBells(); err != nil {
			return err
		}
		if g.in.Ready() {
			return nil
		}
		if g.end != nil {
			return g.end
		}
		r.src.ring = g.in
		err := r.more(HeaderBytes)
		r.src.ring = nil
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			// Data that the peer put into the ring before the end is read first. Later data is ignored, because it
			// could be endless and unanswerable.
			if g.end = err; g.in.End() != nil {
				return fmt.Errorf("%w: %w", ErrProtocol, ring.ErrCorrupt)
			}
		default:
			return err
		}
	}
}

// takeBells consumes the bells read from the socket. Other frames are valid there only after the ring announces them,
// and the ring is read first.
func (r *reader) takeBells() error {
	for r.end-r.start >= HeaderBytes {
		h := parseHeader(r.src.buf.data[r.start:])
		switch {
		case h.kind == KindBell:
		case r.ring.in.Ready():
			return nil
		default:
			return fmt.Errorf("%w: a %s frame comes over the socket, and the ring does not say so", ErrProtocol, h.kind)
		}
		if _, err := r.frameHeader(); err != nil {
			return err
		}
		if err := r.bell(); err != nil {
			return err
		}
	}
	return nil
}

// bell records a bell of the peer. At most one is valid for each time that this side slept.
func (r *reader) bell() error {
	g := &r.ring
	in := g.in
	if in == nil {
		in = g.idle
	}
	if in == nil || !in.Signalled() {
		return fmt.Errorf("%w: a bell, and nobody slept", ErrProtocol)
	}
	r.src.frameDone()
	return nil
}

// inRing reports whether a frame can be taken out of the ring.
func (r *reader) inRing() bool {
	in := r.ring.in
	n, err := in.Available()
	if err != nil || n < HeaderBytes {
		return n > 0 || err != nil // an error ends the connection
	}
	var head [HeaderBytes]byte
	in.Peek(0, head[:])
	return parseHeader(head[:]).kind != KindRing
}
