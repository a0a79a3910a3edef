package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/tensor"
)

const (
	// MaxHeaderBytes is the maximum size of a header, the reference implementation's limit.
	MaxHeaderBytes = 100_000_000

	prefixBytes = 8
	metadataKey = "__metadata__"
	// A header is an object of entries, an entry an object, and a shape an array.
	headerDepth = 3
)

// TensorInfo is the entry of one tensor in a header.
type TensorInfo struct {
	// Name is unique in the file.
	Name string
	// DType is the type of the elements.
	DType tensor.DType
	// Shape is the number of elements in each dimension; empty for a scalar.
	Shape tensor.Shape
	// Begin and End are the half-open range of the tensor's bytes, counted from Header.DataOffset.
	Begin, End int64
}

// Bytes returns the length of the tensor in the file.
func (t TensorInfo) Bytes() int64 { return t.End - t.Begin }

// Header is the validated header of one file. It is a plain value without references to the file.
type Header struct {
	// Tensors is sorted by the place in the file: by Begin, then End; empty tensors as the reference implementation
	// writes them.
	Tensors []TensorInfo
	// Metadata is the file's __metadata__, nil if there is none.
	Metadata map[string]string
	// DataOffset is the offset of the data section in the file, in bytes.
	DataOffset int64
	// FileBytes is the length of the whole file.
	FileBytes int64
}

// DataBytes returns the length of the data section.
func (h *Header) DataBytes() int64 { return h.FileBytes - h.DataOffset }

// ReadHeader reads and validates the header of a file of size bytes. It borrows r and reads nothing behind the header.
// The header's length is checked before memory is allocated. Invalid input is the error of the violated rule, such as
// [ErrHole], and a file of another format a [*FormatError]; errors of r are wrapped.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	h, err := readHeader(r, size)
	if err != nil {
		return nil, sniff(r, size, err)
	}
	return h, nil
}

func readHeader(r io.ReaderAt, size int64) (*Header, error) {
	if size < prefixBytes {
		return nil, fmt.Errorf("%w: %d bytes are too few for the header's length", ErrTruncated, size)
	}
	var prefix [prefixBytes]byte
	if err := readFull(r, prefix[:], 0); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	switch {
	case length > MaxHeaderBytes:
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d", ErrHeaderTooLarge, length, MaxHeaderBytes)
	case int64(length) > size-prefixBytes:
		return nil, fmt.Errorf("%w: header of %d bytes in a file of %d", ErrTruncated, length, size)
	}
	text, err := readText(r, int64(length))
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(text)
	if err != nil {
		return nil, err
	}
	h.DataOffset, h.FileBytes = prefixBytes+int64(length), size
	if err := h.check(); err != nil {
		return nil, err
	}
	return h, nil
}

// readText returns the text of a header of length bytes. It is read in pieces, because converting bytes to a string copies
// them.
func readText(r io.ReaderAt, length int64) (string, error) {
	var text strings.Builder
	text.Grow(int(length))
	piece := make([]byte, min(length, 32<<10))
	for at := int64(0); at < length; at += int64(len(piece)) {
		piece = piece[:min(length-at, int64(len(piece)))]
		if err := readFull(r, piece, prefixBytes+at); err != nil {
			return "", err
		}
		text.Write(piece)
	}
	return text.String(), nil
}

// readFull fills p from offset off.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("%w: ends inside the header", ErrTruncated)
	}
	return fmt.Errorf("read the header: %w", err)
}

// check applies the rules on ranges to the tensors, which are sorted by place.
func (h *Header) check() error {
	var at int64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		switch {
		case t.Begin < at:
			return fmt.Errorf("tensor %s: %w: begins at %d, the one before ends at %d", quote(t.Name), ErrOverlap, t.Begin, at)
		case t.Begin > at:
			return fmt.Errorf("tensor %s: %w: begins at %d, the one before ends at %d", quote(t.Name), ErrHole, t.Begin, at)
		}
		at = t.End
	}
	switch data := h.DataBytes(); {
	case at > data:
		return fmt.Errorf("%w: the tensors have %d bytes, the file holds %d of them", ErrTruncated, at, data)
	case at < data:
		return fmt.Errorf("%w: the tensors have %d bytes, the file holds %d", ErrTrailingData, at, data)
	}
	return nil
}

// sortByPlace sorts tensors by place in the file. An empty tensor precedes the one with the same beginning, otherwise
// it would seem to overlap it; several empty ones are in the order of the reference implementation.
func sortByPlace(tensors []TensorInfo) {
	slices.SortFunc(tensors, func(a, b TensorInfo) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), byRank(a, b))
	})
}

// byRank is the reference implementation's order of writing: widest alignment first, then by name.
func byRank(a, b TensorInfo) int {
	return cmp.Or(rank(b.DType)-rank(a.DType), strings.Compare(a.Name, b.Name))
}

// byteLen returns the length of a tensor in a file.
func byteLen(dt tensor.DType, shape tensor.Shape) (int64, error) {
	n, err := shape.NumElements()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrOverflow, err)
	}
	bits := int64(dt.BitSize())
	if bits < 8 {
		if n%8*bits%8 != 0 {
			return 0, fmt.Errorf("%w: %d elements of %d bits", ErrMisaligned, n, bits)
		}
		return n/8*bits + n%8*bits/8, nil
	}
	if n > math.MaxInt64/(bits/8) {
		return 0, fmt.Errorf("%w: %d elements of %s", ErrOverflow, n, dt)
	}
	return n * (bits / 8), nil
}

// parseHeader parses the JSON of a header. Each range is valid and they are sorted; check compares them with each
// other.
func parseHeader(text string) (*Header, error) {
	if len(text) == 0 || text[0] != '{' {
		return nil, ErrHeaderStart
	}
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("header: %w", ErrUTF8)
	}
	tensors := min(strings.Count(text, `"data_offsets"`), len(text)/minEntryBytes)
	p := parser{
		scanner: scanner{text: text, maxDepth: headerDepth, syntax: ErrHeaderJSON},
		header:  &Header{Tensors: make([]TensorInfo, 0, tensors)},
	}
	if tensors == 0 {
		p.header.Tensors = nil
	}
	if err := p.object(p.member); err != nil {
		return nil, err
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	if name, twice := duplicateName(p.header.Tensors); twice {
		return nil, fmt.Errorf("%w: %s", ErrDuplicateName, quote(name))
	}
	sortByPlace(p.header.Tensors)
	return p.header, nil
}

// minEntryBytes is the minimum length of a tensor's entry.
const minEntryBytes = len(`"":{"dtype":"F4","shape":[],"data_offsets":[0,0]},`)

// duplicateName returns a name that occurs twice; encoding/json would keep the last one. A sorted list of numbers needs less
// memory than a map.
func duplicateName(tensors []TensorInfo) (name string, twice bool) {
	order := make([]uint32, len(tensors)) // a header has fewer tensors than bytes
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return strings.Compare(tensors[a].Name, tensors[b].Name) })
	for i := 1; i < len(order); i++ {
		if name = tensors[order[i]].Name; name == tensors[order[i-1]].Name {
			return name, true
		}
	}
	return "", false
}
