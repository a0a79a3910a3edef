package grpcguard

import "encoding/binary"

// Constants of HTTP/2 needed to recognize DATA frames (RFC 9113).
const (
	prefaceBytes     = 24
	frameHeaderBytes = 9
	frameData        = 0
	frameHeaders     = 1
	frameContinued   = 9 // CONTINUATION, the rest of a header block
	flagPadded       = 8
	flagEndHeaders   = 4
)

// frameCost returns the memory that the transport keeps for a DATA frame of n bytes: a buffer from one of a few size
// classes, and bookkeeping. Clients choose how many frames a message is split into.
func frameCost(n int) int64 {
	const administration, unpooled, small, large = 256, 1 << 10, 4 << 10, 16 << 10
	switch {
	case n <= unpooled:
		return int64(n) + administration
	case n <= small:
		return small + administration
	}
	return int64(max(n, large)) + administration
}

// scanner follows the frames that a client sends. The transport reads frame by frame, so no slice extends past the end
// of a frame header.
type scanner struct {
	skip   int // remaining bytes of the client preface
	header [frameHeaderBytes]byte
	have   int // bytes of header

	left    int // remaining bytes of the payload
	pad     int // padding at the end of the payload, in bytes
	padded  bool
	stream  *stream         // stream of the current DATA frame; nil for other frames
	opening uint32          // stream id if the last frame was part of a header block, otherwise 0
	block   bool            // a header block is unfinished
	data    bool            // the current frame is DATA
	reset   func(id uint32) // called for each stream that the client resets; may be nil
}

// partial reports whether the preface, a frame or a header block is unfinished.
func (f *scanner) partial() bool { return f.skip > 0 || f.have > 0 || f.left > 0 || f.block }

// scan processes the next bytes of the connection. find returns the stream of an id, or nil.
func (f *scanner) scan(p []byte, find func(uint32) *stream) {
	n := min(f.skip, len(p))
	f.skip -= n
	for p = p[n:]; len(p) > 0; {
		if f.left > 0 {
			n := min(f.left, len(p))
			f.payload(p[:n])
			p = p[n:]
			continue
		}
		n := copy(f.header[f.have:], p)
		f.have += n
		p = p[n:]
		if f.have == frameHeaderBytes {
			f.begin(find)
		}
	}
}

// begin starts the payload of a frame.
func (f *scanner) begin(find func(uint32) *stream) {
	f.have = 0
	f.left = int(binary.BigEndian.Uint32(f.header[:]) >> 8)
	id := binary.BigEndian.Uint32(f.header[5:]) &^ (1 << 31)
	f.opening, f.stream, f.pad, f.padded = 0, nil, 0, false
	f.data = f.header[3] == frameData
	switch f.header[3] {
	case frameHeaders, frameContinued:
		f.opening = id
		f.block = f.header[4]&flagEndHeaders == 0
	case frameReset:
		if f.reset != nil {
			f.reset(id)
		}
	case frameData:
		if f.stream = find(id); f.stream != nil && f.left > 0 {
			f.stream.charge(frameCost(f.left))
		}
		f.padded = f.header[4]&flagPadded != 0
	}
}

// payload processes bytes of the current frame.
func (f *scanner) payload(p []byte) {
	if f.stream == nil {
		f.left -= len(p)
		return
	}
	if f.padded {
		f.pad, f.padded = int(p[0]), false
		f.left--
		p = p[1:]
	}
	data := p[:max(0, min(len(p), f.left-f.pad))]
	f.left -= len(p)
	if len(data) > 0 {
		f.stream.arrived(data)
	}
}

// messageHeaderBytes is the length of a message's header: a flag and the size.
const messageHeaderBytes = 5

// messages follows the messages of one call.
type messages struct {
	header  [messageHeaderBytes]byte
	have    int
	left    int64   // remaining bytes of the current message
	current int64   // charged for the current message
	waiting []int64 // charge of each complete message that was not received yet
}

// partial reports whether a message is incomplete.
func (m *messages) partial() bool { return m.have > 0 || m.left > 0 }

// add processes bytes of the call. It calls begun when the first byte of a message arrives, and claimed with the
// message's size when its header is complete.
func (m *messages) add(p []byte, begun func(), claimed func(size int64)) {
	for len(p) > 0 {
		if m.left > 0 {
			n := min(m.left, int64(len(p)))
			m.left -= n
			p = p[n:]
			if m.left == 0 {
				m.complete()
			}
			continue
		}
		if m.have == 0 {
			begun()
		}
		n := copy(m.header[m.have:], p)
		m.have += n
		p = p[n:]
		if m.have == messageHeaderBytes {
			m.have = 0
			m.left = int64(binary.BigEndian.Uint32(m.header[1:]))
			if claimed(m.left); m.left == 0 {
				m.complete()
			}
		}
	}
}

func (m *messages) complete() {
	m.waiting = append(m.waiting, m.current)
	m.current = 0
}

// next removes and returns the charge of the oldest message that was not received yet.
func (m *messages) next() int64 {
	if len(m.waiting) == 0 {
		return 0
	}
	n := m.waiting[0]
	if m.waiting = m.waiting[1:]; len(m.waiting) == 0 {
		m.waiting = nil
	}
	return n
}
