package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Types of metadata values, enum gguf_type in ggml/include/gguf.h.
const (
	typeUint8 = iota
	typeInt8
	typeUint16
	typeInt16
	typeUint32
	typeInt32
	typeFloat32
	typeBool
	typeString
	typeArray
	typeUint64
	typeInt64
	typeFloat64
)

// Minimum sizes in the file, which bound counts before memory is allocated: a length of 8 bytes, and a type.
const (
	minEntryBytes  = 8 + 4 + 1
	minTensorBytes = 8 + 4 + 4 + 8
	minStringBytes = 8
)

// readBuffer is the number of bytes that are read at a time.
const readBuffer = 64 << 10

// decoder reads a header. at is its position in the file, and end the limit of the header.
type decoder struct {
	r       *bufio.Reader
	at, end int64
	capped  bool // end is MaxHeaderBytes rather than the end of the file
	scratch [8]byte
	texts   *strings.Builder // holds many short strings
	sizes   []int64          // holds many shapes; the rest is free
}

func newDecoder(r io.ReaderAt, size int64) *decoder {
	end := min(size, MaxHeaderBytes)
	return &decoder{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, end), readBuffer), end: end, capped: end < size}
}

// header reads everything before the data section.
func (d *decoder) header() (*Header, error) {
	h := new(Header)
	tensors, entries, err := d.start(h)
	if err != nil {
		return nil, err
	}
	for range entries {
		e, err := d.entry()
		if err != nil {
			return nil, err
		}
		h.Metadata = append(grown(h.Metadata, entries), e)
	}
	if err := h.checkMetadata(); err != nil {
		return nil, err
	}
	for range tensors {
		t, err := d.tensor()
		if err != nil {
			return nil, err
		}
		h.Tensors = append(grown(h.Tensors, tensors), t)
	}
	return h, nil
}

// grown returns s with room for another of n elements. A count that is too large allocates four times what was read, and a
// correct one at most a third more than all elements.
func grown[S ~[]T, T any](s S, n int) S {
	if len(s) < cap(s) || n == 0 {
		return s
	}
	return append(make(S, 0, min(n, max(4<<10, 4*len(s)))), s...)
}

// start reads the magic, the version and the counts.
func (d *decoder) start(h *Header) (tensors, entries int, err error) {
	magic, err := d.take(4)
	if err != nil {
		return 0, 0, err
	}
	if string(magic) != Magic {
		return 0, 0, fmt.Errorf("%w: it begins with %q", ErrMagic, magic)
	}
	if h.Version, err = d.uint32(); err != nil {
		return 0, 0, err
	}
	switch {
	case h.Version&0xFFFF == 0 && h.Version != 0:
		return 0, 0, ErrByteOrder
	case h.Version != 2 && h.Version != newestVersion:
		return 0, 0, fmt.Errorf("%w: %d; convert it with a current llama.cpp", ErrVersion, h.Version)
	}
	if tensors, err = d.count("tensors", minTensorBytes); err != nil {
		return 0, 0, err
	}
	entries, err = d.count("metadata entries", minEntryBytes)
	return tensors, entries, err
}

// take returns the next n bytes, at most 8, valid until the next call.
func (d *decoder) take(n int) ([]byte, error) {
	b := d.scratch[:n]
	return b, d.fill(b)
}

// fill reads len(p) bytes.
func (d *decoder) fill(p []byte) error {
	n, err := io.ReadFull(d.r, p)
	d.at += int64(n)
	return d.fault(err)
}

// fault returns the error for an error of the reader.
func (d *decoder) fault(err error) error {
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("read the header: %w", err)
	case d.capped:
		return fmt.Errorf("%w: the limit is %d bytes", ErrHeaderTooLarge, int64(MaxHeaderBytes))
	}
	return fmt.Errorf("%w: it ends within the header, after %d bytes", ErrTruncated, d.at)
}

func (d *decoder) uint32() (uint32, error) {
	b, err := d.take(4)
	return binary.LittleEndian.Uint32(b), err
}

func (d *decoder) uint64() (uint64, error) {
	b, err := d.take(8)
	return binary.LittleEndian.Uint64(b), err
}

// count reads a number of items of at least the given size, which must fit the rest of the header.
func (d *decoder) count(what string, size int64) (int, error) {
	n, err := d.uint64()
	if err != nil {
		return 0, err
	}
	if left := (d.end - d.at) / size; n > uint64(left) {
		if d.capped {
			return 0, fmt.Errorf("%w: %d %s; the limit is %d bytes", ErrHeaderTooLarge, n, what, int64(MaxHeaderBytes))
		}
		return 0, fmt.Errorf("%w: %d %s, and the file has room for %d", ErrCount, n, what, left)
	}
	return int(n), nil
}

// textChunk is the number of bytes that are allocated for short strings at a time.
const textChunk = 16 << 10

func (d *decoder) string(what string) (string, error) {
	n, err := d.count(what, 1)
	if err != nil || n == 0 {
		return "", err
	}
	if d.texts == nil || d.texts.Cap()-d.texts.Len() < n {
		texts := new(strings.Builder)
		texts.Grow(max(n, min(textChunk, int(d.end-d.at))))
		if n > textChunk/4 {
			return d.text(texts, n)
		}
		d.texts = texts
	}
	return d.text(d.texts, n)
}

// text reads n bytes to the end of texts, which has room for them.
func (d *decoder) text(texts *strings.Builder, n int) (string, error) {
	begin := texts.Len()
	for n > 0 {
		p, err := d.peek(n)
		if err != nil {
			return "", err
		}
		texts.Write(p)
		n -= len(p)
		d.skip(len(p))
	}
	return texts.String()[begin:], nil
}

// peek returns up to n of the next bytes, at least one, valid until the next call.
func (d *decoder) peek(n int) ([]byte, error) {
	p, err := d.r.Peek(min(n, readBuffer))
	if len(p) == min(n, readBuffer) {
		return p, nil
	}
	d.at += int64(len(p))
	return nil, d.fault(err)
}

// skip passes n bytes that peek returned.
func (d *decoder) skip(n int) {
	_, _ = d.r.Discard(n) // they are in the buffer
	d.at += int64(n)
}

// entry reads one key with its value.
func (d *decoder) entry() (e Entry, err error) {
	if e.Key, err = d.string("bytes of a metadata key"); err != nil {
		return e, err
	}
	number, err := d.uint32()
	if err != nil {
		return e, err
	}
	if e.Value, err = d.value(number); err != nil {
		return e, fmt.Errorf("metadata %q: %w", e.Key, err)
	}
	return e, nil
}

// value reads a value of the type with this number.
func (d *decoder) value(number uint32) (any, error) {
	if number == typeArray {
		return d.array()
	}
	return d.scalar(number)
}

func (d *decoder) scalar(number uint32) (any, error) {
	if number == typeString {
		return d.string("bytes of a metadata value")
	}
	size := scalarBytes(number)
	if size == 0 {
		return nil, fmt.Errorf("%w: type %d is not known", ErrValue, number)
	}
	b, err := d.take(size)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	switch number {
	case typeUint8:
		return b[0], nil
	case typeInt8:
		return int8(b[0]), nil
	case typeUint16:
		return le.Uint16(b), nil
	case typeInt16:
		return int16(le.Uint16(b)), nil
	case typeUint32:
		return le.Uint32(b), nil
	case typeInt32:
		return int32(le.Uint32(b)), nil
	case typeFloat32:
		return math.Float32frombits(le.Uint32(b)), nil
	case typeUint64:
		return le.Uint64(b), nil
	case typeInt64:
		return int64(le.Uint64(b)), nil
	case typeFloat64:
		return math.Float64frombits(le.Uint64(b)), nil
	}
	return decodeBool(b)
}

func decodeBool(b []byte) (bool, error) {
	if b[0] > 1 {
		return false, fmt.Errorf("%w: a bool is %d, not 0 or 1", ErrValue, b[0])
	}
	return b[0] == 1, nil
}

// scalarBytes returns the size of a value of fixed size, or 0.
func scalarBytes(number uint32) int {
	switch number {
	case typeUint8, typeInt8, typeBool:
		return 1
	case typeUint16, typeInt16:
		return 2
	case typeUint32, typeInt32, typeFloat32:
		return 4
	case typeUint64, typeInt64, typeFloat64:
		return 8
	}
	return 0
}

// array reads an array of values of one type, as a slice of that type.
func (d *decoder) array() (any, error) {
	number, err := d.uint32()
	if err != nil {
		return nil, err
	}
	if number == typeArray {
		return nil, fmt.Errorf("%w: arrays of arrays are not supported", ErrValue)
	}
	size := int64(minStringBytes)
	if number != typeString {
		if size = int64(scalarBytes(number)); size == 0 {
			return nil, fmt.Errorf("%w: array of type %d, which is not known", ErrValue, number)
		}
	}
	n, err := d.count("array elements", size)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	switch number {
	case typeUint8:
		return elements(d, n, 1, func(b []byte) uint8 { return b[0] })
	case typeInt8:
		return elements(d, n, 1, func(b []byte) int8 { return int8(b[0]) })
	case typeUint16:
		return elements(d, n, 2, le.Uint16)
	case typeInt16:
		return elements(d, n, 2, func(b []byte) int16 { return int16(le.Uint16(b)) })
	case typeUint32:
		return elements(d, n, 4, le.Uint32)
	case typeInt32:
		return elements(d, n, 4, func(b []byte) int32 { return int32(le.Uint32(b)) })
	case typeFloat32:
		return elements(d, n, 4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) })
	case typeUint64:
		return elements(d, n, 8, le.Uint64)
	case typeInt64:
		return elements(d, n, 8, func(b []byte) int64 { return int64(le.Uint64(b)) })
	case typeFloat64:
		return elements(d, n, 8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) })
	case typeBool:
		return d.bools(n)
	}
	return d.strings(n)
}

// elements reads n values of the given size. The file has room for them, so the slice has at most the size of the header.
func elements[T any](d *decoder, n, size int, value func([]byte) T) (any, error) {
	all := make([]T, 0, n)
	for len(all) < n {
		p, err := d.peek((n - len(all)) * size)
		if err != nil {
			return nil, err
		}
		used := len(p) / size * size
		for ; len(p) >= size; p = p[size:] {
			all = append(all, value(p))
		}
		d.skip(used)
	}
	return all, nil
}

func (d *decoder) bools(n int) (any, error) {
	all := make([]bool, 0, n)
	for range n {
		b, err := d.take(1)
		if err != nil {
			return nil, err
		}
		v, err := decodeBool(b)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func (d *decoder) strings(n int) (any, error) {
	all := grown([]string{}, n)
	for range n {
		s, err := d.string("bytes of a metadata value")
		if err != nil {
			return nil, err
		}
		all = append(grown(all, n), s)
	}
	return all, nil
}

// shape returns a new shape of dims sizes.
func (d *decoder) shape(dims int) tensor.Shape {
	if d.sizes == nil || len(d.sizes) < dims {
		d.sizes = make([]int64, 512*maxDimensions)
	}
	s := d.sizes[:dims:dims]
	d.sizes = d.sizes[dims:]
	return s
}

// tensor reads one entry. The rules about its content are checked later.
func (d *decoder) tensor() (t TensorInfo, err error) {
	if t.Name, err = d.string("bytes of a tensor name"); err != nil {
		return t, err
	}
	dims, err := d.uint32()
	if err != nil {
		return t, err
	}
	if dims > maxDimensions {
		return t, fmt.Errorf("tensor %q: %w: %d dimensions, more than %d", t.Name, ErrShape, dims, maxDimensions)
	}
	t.Shape = d.shape(int(dims))
	for i := range t.Shape {
		n, err := d.uint64()
		if err != nil {
			return t, err
		}
		if n > math.MaxInt64 {
			return t, fmt.Errorf("tensor %q: %w: dimension %d", t.Name, ErrShape, n)
		}
		t.Shape[i] = int64(n)
	}
	slices.Reverse(t.Shape)
	number, err := d.uint32()
	if err != nil {
		return t, err
	}
	if t.DType, err = dtypeOf(number); err != nil {
		return t, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	offset, err := d.uint64()
	if err != nil {
		return t, err
	}
	if offset > math.MaxInt64 {
		return t, fmt.Errorf("tensor %q: %w: offset %d", t.Name, ErrTruncated, offset)
	}
	t.Offset = int64(offset)
	return t, nil
}
