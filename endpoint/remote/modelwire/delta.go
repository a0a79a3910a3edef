package modelwire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A delta is the difference between two versions of a tensor's bytes.
//
// A training step of bfloat16 changes a few percent of the elements, spread over nearly all tensors. A delta stores the
// positions and new values of these elements, not arithmetic differences. A tensor is divided into segments, and each
// is encoded in the form that needs the fewest bytes:
//
//	same     nothing
//	sparse   the distances between the elements that changed, and their values
//	blocks   the distances between the 512-byte blocks that changed, and their bytes
//	whole    all bytes
//
// A segment is compressed with zstd if that saves space. It is encoded as one byte (its kind, with bit 7 set if it is
// compressed), and, unless the kind is same, the length of the payload as a varint and the payload.
//
// Decoding validates its input: positions are within the segment, lengths agree, and no payload is larger than its
// segment allows. The caller verifies the result by its digest.

// deltaSegment is the length of each segment except the last of a tensor. It is a multiple of every element size and of
// blockBytes.
const deltaSegment = 4 << 20

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

// ErrDelta means that the input is not a valid delta.
var ErrDelta = errors.New("invalid delta")

// segments returns the number of segments of size bytes.
func segments(size int64) int64 { return (size + deltaSegment - 1) / deltaSegment }

// segment returns the range of segment i in a tensor of size bytes.
func segment(size, i int64) (begin, end int64) {
	begin = i * deltaSegment
	return begin, min(begin+deltaSegment, size)
}

// deltaEncoder encodes deltas. It is not safe for concurrent use. Its buffers hold a few segments.
type deltaEncoder struct {
	sparse, blocks, packed []byte
	zstd                   *zstd.Encoder
}

// deltaEncoders is a pool of encoders. encoding limits the number of concurrent encodings, so that delta requests cannot
// starve calls.
var (
	deltaEncoders = sync.Pool{New: func() any {
		z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
		if err != nil {
			return err
		}
		return &deltaEncoder{zstd: z}
	}}
	encoding = admission.NewSlots(max(1, runtime.GOMAXPROCS(0)-1), -1)
)

// WriteDelta writes the segments of the delta between two versions of a tensor of size bytes, beginning with number
// from. elementBytes is [ElementBytes] of its type. views returns the bytes from begin to end in both versions; they are
// used until the next call.
func WriteDelta(w io.Writer, size int64, elementBytes int, from int64, views func(begin, end int64) (old, now []byte, err error)) error {
	got := deltaEncoders.Get()
	if err, failed := got.(error); failed {
		return err
	}
	encoder := got.(*deltaEncoder) //nolint:forcetypeassert // it is the one or the other
	defer deltaEncoders.Put(encoder)
	var out []byte
	for i := from; i < segments(size); i++ {
		old, now, err := views(segment(size, i))
		if err != nil {
			return err
		}
		_ = encoding.Enter(context.Background()) // a slot is held for milliseconds
		out = encoder.segment(out[:0], old, now, elementBytes)
		encoding.Leave()
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	return nil
}

// segment appends the delta from old to now to out. Both are the same segment, of equal length, with elements of
// elementBytes bytes.
func (e *deltaEncoder) segment(out, old, now []byte, elementBytes int) []byte {
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
func (e *deltaEncoder) compare(old, now []byte, size int) bool {
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
func (e *deltaEncoder) elements(old, now []byte, begin, end, size, last int) int {
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

// ElementBytes returns the element size of a type for encoding: its size if that is 2, 4 or 8 bytes, 8 for 16-byte
// types, and otherwise 1.
func ElementBytes(dt tensor.DType) int {
	switch bits := dt.BitSize(); bits {
	case 16, 32, 64:
		return bits / 8
	case 128:
		return 8
	}
	return 1
}

// decoders are pooled, because each has large tables.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*deltaSegment), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	return d
}}

// ApplyDelta reads the segments of a delta, beginning with number from, and applies them to data, which holds the base. It
// returns the number of the first segment that was not applied. If there is no error, all were applied. After an error,
// a segment may be changed in part. Applying it again completes it.
func ApplyDelta(data []byte, elementBytes int, from int64, r *bufio.Reader) (int64, error) {
	got := decoders.Get()
	if err, failed := got.(error); failed {
		return from, err
	}
	decoder := got.(*zstd.Decoder) //nolint:forcetypeassert // it is the one or the other
	defer decoders.Put(decoder)
	var payload, plain []byte
	for i := from; i < segments(int64(len(data))); i++ {
		begin, end := segment(int64(len(data)), i)
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
			return i, fmt.Errorf("%w: payload of %d bytes for a segment of %d", ErrDelta, length, len(part))
		}
		if kind == whole {
			if _, err := io.ReadFull(r, part[:length]); err != nil {
				return i, unexpected(err)
			}
			if int(length) != len(part) {
				return i, fmt.Errorf("%w: payload of a %d-byte segment has %d bytes", ErrDelta, len(part), length)
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
				return i, fmt.Errorf("%w: %w", ErrDelta, err)
			}
			text = plain
		}
		if err := applySegment(part, kind&^compressed, text, elementBytes); err != nil {
			return i, err
		}
	}
	return segments(int64(len(data))), nil
}

// applySegment applies one segment.
func applySegment(part []byte, kind byte, text []byte, elementBytes int) error {
	switch kind {
	case whole:
		if len(text) != len(part) {
			return fmt.Errorf("%w: payload of a %d-byte segment has %d bytes", ErrDelta, len(part), len(text))
		}
		copy(part, text)
		return nil
	case sparse:
		return scatter(part, text, elementBytes)
	case blocks:
		return scatter(part, text, blockBytes)
	}
	return fmt.Errorf("%w: unknown segment kind %d", ErrDelta, kind)
}

// scatter writes units of size bytes at the encoded distances. The last unit of a segment may be shorter.
func scatter(part, text []byte, size int) error {
	at := 0
	for len(text) > 0 {
		gap, n := binary.Uvarint(text)
		if n <= 0 || gap > uint64((len(part)-at)/size) {
			return fmt.Errorf("%w: position out of range", ErrDelta)
		}
		text = text[n:]
		at += int(gap) * size
		length := min(size, len(part)-at)
		if length <= 0 || length > len(text) {
			return fmt.Errorf("%w: truncated value", ErrDelta)
		}
		copy(part[at:], text[:length])
		text = text[length:]
		at += length
	}
	return nil
}
