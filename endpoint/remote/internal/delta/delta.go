package delta

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// SegmentBytes is the length of each segment except the last of a tensor. It is a multiple of every element size and of
// blockBytes.
const SegmentBytes = 4 << 20

// blockBytes is the unit of comparison and of the kind blocks.
const blockBytes = 512

// Kinds of segments.
const (
	same byte = iota
	sparse
	blocks
	whole

	compressed byte = 0x80
)

// ErrFormat means that the input is not a valid delta.
var ErrFormat = errors.New("invalid delta")

// Segments returns the number of segments of size bytes.
func Segments(size int64) int64 { return (size + SegmentBytes - 1) / SegmentBytes }

// Segment returns the range of segment i in a tensor of size bytes.
func Segment(size, i int64) (begin, end int64) {
	begin = i * SegmentBytes
	return begin, min(begin+SegmentBytes, size)
}

// Encoder encodes deltas. It is not safe for concurrent use. Its buffers hold a few segments.
type Encoder struct {
	sparse, blocks, packed []byte
	zstd                   *zstd.Encoder
}

// NewEncoder returns an encoder.
func NewEncoder() (*Encoder, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	return &Encoder{zstd: z}, err
}

// Segment appends the delta from old to now to out. Both are the same segment, of equal length, with elements of
// elementBytes bytes.
func (e *Encoder) Segment(out, old, now []byte, elementBytes int) []byte {
	e.sparse, e.blocks = e.sparse[:0], e.blocks[:0]
	if !e.compare(old, now, elementBytes) {
		return append(out, same)
	}
	kind, payload := whole, now
	if len(e.blocks) < len(payload) {
		kind, payload = blocks, e.blocks
	}
	if n := len(e.sparse); n > 0 && n < len(payload) {
		kind, payload = sparse, e.sparse
	}
	// Saving less than one sixteenth is not worth the cost of decompression.
	if e.packed = e.zstd.EncodeAll(payload, e.packed[:0]); len(e.packed) < len(payload)-len(payload)/16 {
		kind, payload = kind|compressed, e.packed
	}
	out = append(out, kind)
	out = binary.AppendUvarint(out, uint64(len(payload)))
	return append(out, payload...)
}

// compare encodes the differences as sparse and as blocks, and reports whether there are any. An encoding that is too
// large is not completed: e.sparse is then empty, and e.blocks is longer than the segment.
func (e *Encoder) compare(old, now []byte, size int) bool {
	changed, fits := false, true
	lastBlock, lastElement := 0, 0 // positions after the last change
	for begin := 0; begin < len(now); begin += blockBytes {
		end := min(begin+blockBytes, len(now))
		if bytes.Equal(old[begin:end], now[begin:end]) {
			continue
		}
		changed = true
		e.blocks = binary.AppendUvarint(e.blocks, uint64(begin/blockBytes-lastBlock))
		e.blocks = append(e.blocks, now[begin:end]...)
		lastBlock = begin/blockBytes + 1
		if fits {
			lastElement = e.elements(old, now, begin, end, size, lastElement)
			if fits = len(e.sparse) < len(now)/2; !fits {
				e.sparse = e.sparse[:0]
			}
		}
	}
	return changed
}

// elements encodes the changed elements of a block. last is the position after the previous changed element.
func (e *Encoder) elements(old, now []byte, begin, end, size, last int) int {
	for at := begin; at < end; {
		if end-at >= 8 && binary.LittleEndian.Uint64(old[at:]) == binary.LittleEndian.Uint64(now[at:]) {
			at += 8
			continue
		}
		stop := min(at+8, end)
		for ; at < stop; at += size {
			to := min(at+size, end)
			if !bytes.Equal(old[at:to], now[at:to]) {
				e.sparse = binary.AppendUvarint(e.sparse, uint64(at/size-last))
				e.sparse = append(e.sparse, now[at:to]...)
				last = at/size + 1
			}
		}
	}
	return last
}

// ElementBytes returns the element size for encoding: that of the type if it is 2, 4 or 8 bytes, 8 for 16-byte types,
// and otherwise 1.
func ElementBytes(bits int) int {
	switch bits {
	case 16, 32, 64:
		return bits / 8
	case 128:
		return 8
	}
	return 1
}

// decoders are pooled, because each has large tables.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*SegmentBytes), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	return d
}}

// Apply reads the segments of a delta, beginning with number from, and applies them to data, which holds the base. It
// returns the number of the first segment that was not applied. If there is no error, all were applied. After an error,
// a segment may be changed in part. Applying it again completes it.
func Apply(data []byte, elementBytes int, from int64, r *bufio.Reader) (int64, error) {
	got := decoders.Get()
	if err, failed := got.(error); failed {
		return from, err
	}
	decoder := got.(*zstd.Decoder) //nolint:forcetypeassert // it is the one or the other
	defer decoders.Put(decoder)
	var payload, plain []byte
	for i := from; i < Segments(int64(len(data))); i++ {
		begin, end := Segment(int64(len(data)), i)
		part := data[begin:end]
		kind, err := r.ReadByte()
		if err != nil {
			return i, unexpected(err)
		}
		if kind == same {
			continue
		}
		length, err := binary.ReadUvarint(r)
		if err != nil {
			return i, unexpected(err)
		}
		if length > uint64(len(part)) {
			return i, fmt.Errorf("%w: payload of %d bytes for a segment of %d", ErrFormat, length, len(part))
		}
		if kind == whole {
			if _, err := io.ReadFull(r, part[:length]); err != nil {
				return i, unexpected(err)
			}
			if int(length) != len(part) {
				return i, fmt.Errorf("%w: payload of a %d-byte segment has %d bytes", ErrFormat, len(part), length)
			}
			continue
		}
		if uint64(cap(payload)) < length {
			payload = make([]byte, length)
		}
		payload = payload[:length]
		if _, err := io.ReadFull(r, payload); err != nil {
			return i, unexpected(err)
		}
		text := payload
		if kind&compressed != 0 {
			if plain, err = decoder.DecodeAll(payload, plain[:0]); err != nil {
				return i, fmt.Errorf("%w: %w", ErrFormat, err)
			}
			text = plain
		}
		if err := applySegment(part, kind&^compressed, text, elementBytes); err != nil {
			return i, err
		}
	}
	return Segments(int64(len(data))), nil
}

// unexpected converts io.EOF to io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// applySegment applies one segment.
func applySegment(part []byte, kind byte, text []byte, elementBytes int) error {
	switch kind {
	case whole:
		if len(text) != len(part) {
			return fmt.Errorf("%w: payload of a %d-byte segment has %d bytes", ErrFormat, len(part), len(text))
		}
		copy(part, text)
		return nil
	case sparse:
		return scatter(part, text, elementBytes)
	case blocks:
		return scatter(part, text, blockBytes)
	}
	return fmt.Errorf("%w: unknown segment kind %d", ErrFormat, kind)
}

// scatter writes units of size bytes at the encoded distances. The last unit of a segment may be shorter.
func scatter(part, text []byte, size int) error {
	at := 0
	for len(text) > 0 {
		gap, n := binary.Uvarint(text)
		if n <= 0 || gap > uint64((len(part)-at)/size) {
			return fmt.Errorf("%w: position out of range", ErrFormat)
		}
		text = text[n:]
		at += int(gap) * size
		length := min(size, len(part)-at)
		if length <= 0 || length > len(text) {
			return fmt.Errorf("%w: truncated value", ErrFormat)
		}
		copy(part[at:], text[:length])
		text = text[length:]
		at += length
	}
	return nil
}
