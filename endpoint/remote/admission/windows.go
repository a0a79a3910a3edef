package admission

import (
	"encoding/binary"
	"io"
	"math"
)

// Memory of decoders besides the window of zstd.
const (
	deflateBytes = 64 << 10
	zstdBytes    = 256 << 10
)

// windows passes compressed zstd data through and charges the window of each frame before the decoder reads the frame. It follows
// RFC 8878, section 3.1. Data that is not zstd passes too: the decoder refuses it.
type windows struct {
	r      io.Reader
	charge *Charge

	charged int64
	part    framePart
	have    [18]byte // of the header that is being read
	got     int
	skip    uint64 // bytes until the next header
	sum     bool   // the frame ends with a checksum
}

// framePart is the part of a frame that is being read.
type framePart int

const (
	frameHeader framePart = iota
	skippableSize
	blockHeader
	unknown // nothing more is followed
)

const (
	zstdMagic      = 0xFD2FB528
	skippableMagic = 0x184D2A50 // the lowest 4 bits vary
)

// Read implements io.Reader.
func (w *windows) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if bad := w.follow(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

// follow processes the next bytes.
func (w *windows) follow(p []byte) error {
	for len(p) > 0 && w.part != unknown {
		if w.skip > 0 {
			n := min(w.skip, uint64(len(p)))
			w.skip -= n
			p = p[n:]
			continue
		}
		w.have[w.got] = p[0]
		w.got++
		p = p[1:]
		if err := w.header(w.have[:w.got]); err != nil {
			return err
		}
	}
	return nil
}

// header processes a header if it is complete.
func (w *windows) header(h []byte) error {
	next := w.part
	switch w.part {
	case skippableSize:
		if len(h) < 4 {
			return nil
		}
		w.skip, next = uint64(binary.LittleEndian.Uint32(h)), frameHeader
	case blockHeader:
		if len(h) < 3 {
			return nil
		}
		next = w.block(uint32(h[0]) | uint32(h[1])<<8 | uint32(h[2])<<16)
	case frameHeader:
		if len(h) < 4 {
			return nil
		}
		magic := binary.LittleEndian.Uint32(h)
		switch {
		case magic&^0xF == skippableMagic:
			next = skippableSize
		case magic != zstdMagic:
			next = unknown
		default:
			window, complete := windowOf(h[4:])
			if !complete {
				return nil
			}
			if more := min(window, maxWindow) - w.charged; more > 0 {
				if err := w.charge.Add(more); err != nil {
					return err
				}
				w.charged += more
			}
			w.sum, next = h[4]&4 != 0, blockHeader
		}
	}
	w.part, w.got = next, 0
	return nil
}

// block processes the header of a block and returns what follows the block.
func (w *windows) block(header uint32) framePart {
	w.skip = uint64(header >> 3)
	if header>>1&3 == 1 { // one byte that is repeated
		w.skip = 1
	}
	if header&1 == 0 {
		return blockHeader
	}
	if w.sum {
		w.skip += 4
	}
	return frameHeader
}

// windowOf returns the window of a frame, by its header after the magic number.
func windowOf(h []byte) (window int64, complete bool) {
	if len(h) == 0 {
		return 0, false
	}
	descriptor := h[0]
	single := descriptor&0x20 != 0
	content := []int{0, 2, 4, 8}[descriptor>>6]
	if single && content == 0 {
		content = 1
	}
	at := 1 + []int{0, 1, 2, 4}[descriptor&3]
	if !single {
		at++
	}
	if len(h) < at+content {
		return 0, false
	}
	if !single {
		base := int64(1) << (10 + h[1]>>3)
		return base + base/8*int64(h[1]&7), true
	}
	var size [8]byte
	copy(size[:], h[at:at+content])
	n := binary.LittleEndian.Uint64(size[:])
	if content == 2 {
		n += 256
	}
	return int64(min(n, math.MaxInt64)), true
}
