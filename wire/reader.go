package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// bufferBytes is the maximum size of one read. Frames that fit are cut out of the buffer, so many small frames cost one
// system call. Larger bodies are read directly into their own memory.
const bufferBytes = 8 << 10

// firstBody is allocated for a large body before any of it has arrived. The allocation then grows by the factor
// bodyGrowth as bytes arrive, so announcing 64 MiB without sending them costs the receiver only firstBody.
const (
	firstBody  = 256 << 10
	bodyGrowth = 4
)

// batch holds the descriptors of one read and the range of the stream that arrived with them. The kernel ends a read
// after the segment that carried descriptors, so that segment begins inside the range and no other segment in it has
// any. RATIONALE.md has the argument.
type batch struct {
	start, end uint64
	fds        []int
	count      int   // number received; -1 if the kernel dropped some
	lost       error // why they were closed at once; nil for those in fds
}

// reader cuts frames and their descriptors out of the stream.
type reader struct {
	mu     sync.Mutex
	limits *Limits
	src    source
	flush  func() error // called before a read that may wait
	err    error        // the final error

	// start and end bound the unconsumed bytes of src.buf. pos is the stream offset of the next byte to be read.
	start, end int
	pos        uint64
	frames     int // complete frames since the last read

	// batches holds the unclaimed descriptors. A correct sender causes at most two: one whose frame header is
	// incomplete, and one of the read that completed this header.
	batches [2]batch
	pending int

	// ahead holds the descriptors of the frame in progress, including those of preceding files frames. announced is how
	// many arrived so far. lost is why they were closed. aheadID is the frame's ID.
	ahead     []int
	announced int
	lost      error
	aheadID   uint64

	taken int64 // charged for large

	// inFrame is set if a header was taken and its frame is incomplete. current is that header. large is the body if it
	// does not fit the buffer, of which have bytes have arrived.
	inFrame bool
	current header
	large   []byte
	have    int
	refused bool // large is a buffer for a body that is discarded

	greeting bool // waiting for the hello: until then frames are small and have no descriptors

	ring ringReader
}

// receiveFirst is receive for the first frame, which must be a hello.
func (r *reader) receiveFirst() (Frame, error) {
	set := func(greeting bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.greeting = greeting
	}
	set(true)
	defer set(false)
	return r.receive()
}

func (r *reader) receive() (Frame, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return Frame{}, r.err
	}
	f, err := r.next()
	if err != nil {
		if interrupted(err) {
			return Frame{}, err // nothing is lost; the next Receive continues
		}
		r.fail(err)
		return Frame{}, err
	}
	return f, nil
}

// interrupted reports whether err is that of a read deadline, which is not final.
func interrupted(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, ErrTimeout)
}

// close ends the reader after Receive, which the closed socket has ended, has returned.
func (r *reader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail(fmt.Errorf("receive: %w", net.ErrClosed))
	r.closeRing()
}

// fail makes err final and releases the resources of the reader.
func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	for i := range r.pending {
		r.closeCounted(r.batches[i].fds)
		r.batches[i] = batch{}
	}
	r.pending = 0
	r.closeCounted(r.ahead)
	r.ahead, r.announced, r.lost = nil, 0, nil
	r.dropLarge()
	r.src.frameDone()
	r.start, r.end = 0, 0
	r.src.release()
}

// closeCounted closes descriptors that were charged.
func (r *reader) closeCounted(fds []int) {
	_ = closeDescriptors(fds) // best effort
	_ = r.limits.charge(ResourceFiles, -int64(len(fds)))
}

// buffered reports whether receive would return a frame or an error without reading.
func (r *reader) buffered() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.end - r.start
	switch {
	case r.err != nil:
		return true
	case r.ring.in != nil:
		return r.inRing()
	case r.inFrame || n < HeaderBytes:
		return false
	}
	h := parseHeader(r.src.buf.data[r.start:])
	return h.kind.carries() && int64(h.length) <= int64(n-HeaderBytes)
}

// idle reports whether no byte and no descriptor of a frame in progress is held.
func (r *reader) idle() bool {
	return !r.inFrame && r.start == r.end && r.pending == 0 && r.announced == 0
}

// next returns the next frame, with the descriptors of the preceding files frames.
func (r *reader) next() (Frame, error) {
	for !r.inFrame {
		if r.ring.in != nil {
			f, ok, err := r.ringFrame()
			if ok || err != nil {
				return f, err
			}
			continue
		}
		h, err := r.frameHeader()
		if err != nil {
			return Frame{}, err
		}
		if h.kind == KindRing || h.kind == KindBell {
			if err := r.handleRingFrame(h); err != nil {
				return Frame{}, err
			}
			continue
		}
		// A files frame is complete with its header.
		r.current, r.inFrame = h, h.kind != KindFiles
	}
	body, err := r.body(int(r.current.length))
	if err != nil {
		return Frame{}, err
	}
	if err := r.refuseSurplus(r.offset()); err != nil {
		return Frame{}, err
	}
	r.inFrame = false
	r.frames++
	r.offerRing()
	r.src.frameDone()
	f := Frame{Kind: r.current.kind, ID: r.current.id, Body: body, Refused: r.lost}
	if r.lost != nil { // the rest of the message is discarded
		r.closeCounted(r.ahead)
		r.ahead = nil
	}
	charge := newCharge(r.limits, r.taken, int64(len(r.ahead)))
	if charge != nil {
		f.Release = charge.release
	}
	if r.ahead != nil {
		f.Files = newFiles(r.ahead)
		f.Files.set.charge = charge
	}
	r.taken = 0
	r.ahead, r.announced, r.lost = nil, 0, nil
	return f, nil
}

// frameHeader takes the next header off the stream, checks it, and adds the frame's descriptors to ahead.
func (r *reader) frameHeader() (header, error) {
	if err := r.fill(HeaderBytes); err != nil {
		return header{}, err
	}
	begin := r.offset()
	h := parseHeader(r.src.buf.data[r.start:])
	r.start += HeaderBytes
	if err := h.check(r.limits); err != nil {
		return header{}, err
	}
	if r.greeting && (h.files > 0 || h.length > MaxHello) {
		return header{}, fmt.Errorf("%w: the first frame is a %s with %d bytes and %d descriptors; a hello has at most %d bytes and no descriptors",
			ErrProtocol, h.kind, h.length, h.files, MaxHello)
	}
	if r.announced > 0 && h.id != r.aheadID {
		return header{}, fmt.Errorf("%w: descriptors were sent ahead for %d, but a %s frame of %d follows", ErrProtocol, r.aheadID, h.kind, h.id)
	}
	if n := r.announced + int(h.files); n > r.limits.Files {
		return header{}, fmt.Errorf("%w: %w: %s frame with %d descriptors or more, the limit is %d", ErrProtocol, ErrTooLarge, h.kind, n, r.limits.Files)
	}
	if h.files > 0 {
		if err := r.take(begin, h); err != nil {
			return header{}, err
		}
		r.aheadID = h.id
	}
	return h, r.refuseSurplus(begin + HeaderBytes + uint64(h.length))
}

// take moves the descriptors that a frame announces from their batch to ahead.
func (r *reader) take(begin uint64, h header) error {
	b := r.batches[0]
	if r.pending == 0 || begin < b.start || begin >= b.end {
		return fmt.Errorf("%w: %s frame announces %d descriptors, none came with it", ErrProtocol, h.kind, h.files)
	}
	if b.count >= 0 && b.count != int(h.files) {
		return fmt.Errorf("%w: %s frame announces %d descriptors, %d came with it", ErrProtocol, h.kind, h.files, b.count)
	}
	r.batches[0], r.batches[1] = r.batches[1], batch{}
	r.pending--
	r.announced += int(h.files)
	switch {
	case b.lost != nil || r.lost != nil: // a message that lost some descriptors cannot use the rest
		r.closeCounted(b.fds)
		r.closeCounted(r.ahead)
		r.ahead, r.lost = nil, firstError(r.lost, b.lost)
	case r.ahead == nil:
		r.ahead = b.fds
	default:
		r.ahead = append(r.ahead, b.fds...)
	}
	return nil
}

// firstError returns the first non-nil error.
func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// refuseSurplus refuses descriptors that no frame can claim: those of a read that ended at or before the end of this
// frame, where the next one begins.
func (r *reader) refuseSurplus(frameEnd uint64) error {
	if r.pending > 0 && r.batches[0].end <= frameEnd {
		return fmt.Errorf("%w: descriptors came that no frame announces", ErrProtocol)
	}
	return nil
}

// body returns the next n bytes of the stream in new memory.
func (r *reader) body(n int) ([]byte, error) {
	if HeaderBytes+n <= bufferBytes {
		if err := r.fill(n); err != nil {
			return nil, err
		}
		body := make([]byte, n)
		copy(body, r.src.buf.data[r.start:])
		r.start += n
		return body, nil
	}
	if r.large == nil {
		r.have = 0
		r.grow(min(n, firstBody))
		r.have = copy(r.large, r.src.buf.data[r.start:r.end])
		r.start += r.have
	}
	for r.have < n {
		if r.have == len(r.large) && !r.refused {
			r.grow(min(n, bodyGrowth*len(r.large)))
		}
		dst := r.large
		if r.refused {
			dst = dst[:min(len(dst), n-r.have)]
		} else {
			dst = dst[r.have:]
		}
		got, err := r.read(dst)
		if err != nil {
			return nil, err
		}
		r.have += got
	}
	body := r.large
	if r.refused {
		body = nil // the descriptors are useless without it: see next
	}
	r.large, r.refused = nil, false
	return body, nil
}

// skipBytes is the size of the buffer for a discarded body.
const skipBytes = 32 << 10

// grow enlarges a large body and copies what has arrived. If the charge is refused, the rest is read and discarded.
func (r *reader) grow(size int) {
	if err := r.limits.charge(ResourceBodies, int64(size)-r.taken); err != nil {
		r.dropLarge()
		r.lost = firstError(r.lost, err)
		r.large, r.refused = make([]byte, skipBytes), true
		return
	}
	if r.limits.Charge != nil {
		r.taken = int64(size)
	}
	grown := make([]byte, size)
	copy(grown, r.large)
	r.large = grown
}

// dropLarge discards an incomplete body.
func (r *reader) dropLarge() {
	_ = r.limits.charge(ResourceBodies, -r.taken)
	r.large, r.taken, r.refused = nil, 0, false
}

// fill reads until at least n bytes are in the buffer; n is at most bufferBytes.
func (r *reader) fill(n int) error {
	for r.end-r.start < n {
		if err := r.more(n); err != nil {
			return err
		}
	}
	return nil
}

// more makes one read into the buffer, which must hold n bytes in total.
func (r *reader) more(n int) error {
	if r.start == r.end {
		r.start, r.end = 0, 0
	} else if r.start+n > bufferBytes {
		r.end = copy(r.src.buf.data[:], r.src.buf.data[r.start:r.end])
		r.start = 0
	}
	var dst []byte // nil makes the source borrow a buffer when data is available
	if r.end > 0 || !r.idle() {
		dst = r.src.buf.data[r.end:]
	}
	got, err := r.read(dst)
	if err != nil {
		return err
	}
	r.end += got
	return nil
}

// read makes one read and keeps the descriptors that arrived with it.
func (r *reader) read(dst []byte) (int, error) {
	if err := r.flush(); err != nil {
		return 0, err
	}
	batched := r.frames > 1
	r.frames = 0
	n, fds, err := r.src.read(dst, !r.idle(), batched)
	b := batch{start: r.pos, end: r.pos + uint64(n), fds: fds, count: len(fds)}
	if r.limits.Charge != nil && errors.Is(err, ErrBudget) { // the process has no free descriptor
		b.count, b.lost, err = -1, err, nil
	}
	if b.count != 0 {
		if r.pending == len(r.batches) {
			_ = closeDescriptors(fds)
			return 0, fmt.Errorf("%w: descriptors came that no frame announces", ErrProtocol)
		}
		if full := r.limits.charge(ResourceFiles, int64(len(fds))); full != nil {
			_ = closeDescriptors(fds)
			b.fds, b.lost = nil, full
		}
		r.batches[r.pending] = b
		r.pending++
	}
	r.pos += uint64(n)
	if r.ring.memory != nil && errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF // a peer that left a bell unread has lost nothing
	}
	if err == io.EOF && !r.idle() {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, fmt.Errorf("receive: %w", err)
	}
	return n, nil
}

// offset returns the stream offset of the next unconsumed byte.
func (r *reader) offset() uint64 { return r.pos - uint64(r.end-r.start) }
