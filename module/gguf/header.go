// Package gguf reads and writes the GGUF file format of llama.cpp, versions 2 and 3.
//
// A file begins with the magic "GGUF", a version, the number of tensors and the number of metadata entries. The metadata
// follows: keys with typed values, such as the architecture and the tokenizer. Each tensor has a name, its dimensions
// (the fastest one first, the reverse of [tensor.Shape]), a type and an offset into the data section, which begins at the
// next multiple of the alignment. Everything is little-endian. docs/gguf.md of the ggml repository describes the format.
//
// A [Header] is a pure value: [ReadHeader] reads one from a file, [NewHeader] builds one from a list of tensors, and both
// apply the same rules. Names and keys are unique, offsets are multiples of the alignment, and tensors neither overlap
// nor reach behind the end of the file. Each rule has its own error.
//
// Block-quantised types are data types of package tensor, such as [tensor.Q4_K]. [Float32s] converts them to the same
// bits as ggml.
//
// Surprises: sizes and counts are checked before memory is allocated for them, and files that llama.cpp refuses are
// refused here too: nested arrays, more than four dimensions, names of 64 bytes or more, and big-endian files.
package gguf

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors about one file, wrapped with the key or the tensor.
var (
	// ErrMagic means that a file does not begin with "GGUF".
	ErrMagic = errors.New("not a GGUF file")
	// ErrVersion means that the version is not 2 or 3.
	ErrVersion = errors.New("unsupported GGUF version")
	// ErrByteOrder means that a file is big-endian.
	ErrByteOrder = errors.New("big-endian GGUF file; convert it with gguf_convert_endian of the gguf package")
	// ErrTruncated means that a file ends before its header, or before a tensor.
	ErrTruncated = errors.New("file is truncated")
	// ErrHeaderTooLarge means that metadata and tensor entries exceed [MaxHeaderBytes].
	ErrHeaderTooLarge = errors.New("header is too large")
	// ErrCount means that a count or length exceeds the rest of the file.
	ErrCount = errors.New("count exceeds the file")
	// ErrUTF8 means that a key or name is not UTF-8.
	ErrUTF8 = errors.New("text is not valid UTF-8")
	// ErrKey means that a metadata key is empty, too long or occurs twice.
	ErrKey = errors.New("bad metadata key")
	// ErrValue means that a metadata value has an unknown or an unsupported type.
	ErrValue = errors.New("bad metadata value")
	// ErrAlignment means that a tensor is not aligned, or that general.alignment is another value than a power of two in a uint32.
	ErrAlignment = errors.New("bad alignment")
	// ErrName means that a tensor name is empty, too long or occurs twice.
	ErrName = errors.New("bad tensor name")
	// ErrType means that the tensor type is unknown, or that GGUF does not support the data type.
	ErrType = errors.New("unknown tensor type")
	// ErrShape means that the dimensions are invalid, or that a row is not a number of whole blocks.
	ErrShape = errors.New("bad shape")
	// ErrOverlap means that two tensors share bytes of the file.
	ErrOverlap = errors.New("tensors overlap")
	// ErrLength means that the written bytes of a tensor do not match its type and shape.
	ErrLength = errors.New("wrong number of bytes")
	// ErrSplit means that the files of a split model do not belong together.
	ErrSplit = errors.New("files of a split model do not match")
)

const (
	// Magic is the first four bytes of a file.
	Magic = "GGUF"
	// MaxHeaderBytes is the maximum size of metadata and tensor entries. Files in use stay below a tenth of it.
	MaxHeaderBytes = 256 << 20
	// DefaultAlignment is the alignment of tensors in bytes if the metadata has no general.alignment.
	DefaultAlignment = 32

	alignmentKey  = "general.alignment"
	maxKeyBytes   = 65535
	maxNameBytes  = 63 // GGML_MAX_NAME includes a zero byte
	maxDimensions = 4  // GGML_MAX_DIMS
	newestVersion = 3
)

// TensorInfo is the entry of one tensor.
type TensorInfo struct {
	// Name is unique in the file.
	Name string
	// DType is the type of the elements.
	DType tensor.DType
	// Shape is the size of each dimension, the fastest one last, as in the other packages.
	Shape tensor.Shape
	// Offset is the place of the tensor's bytes, counted from Header.DataOffset.
	Offset int64
}

// Bytes returns the length of the tensor in the file.
func (t TensorInfo) Bytes() int64 {
	n, _ := tensor.Spec{DType: t.DType, Shape: t.Shape}.ByteLen() // checked by ReadHeader and NewHeader
	return n
}

// Header is the validated header of one file. It is a plain value without references to the file.
type Header struct {
	// Version is 2 or 3.
	Version uint32
	// Metadata is the file's metadata.
	Metadata Metadata
	// Tensors are the file's tensors, in its order.
	Tensors []TensorInfo
	// Alignment is the alignment of the data section and of each tensor in bytes.
	Alignment int64
	// DataOffset is the offset of the data section in the file.
	DataOffset int64
	// FileBytes is the length of the whole file.
	FileBytes int64
}

// NewHeader returns the header of a new file of version 3. Offsets of the tensors are ignored and computed: tensors are
// stored in the given order without gaps except for the alignment, as llama.cpp requires. It borrows the slices. Errors
// are those of ReadHeader.
func NewHeader(tensors []TensorInfo, metadata Metadata) (*Header, error) {
	h := &Header{Version: newestVersion, Metadata: slices.Clone(metadata), Tensors: slices.Clone(tensors)}
	if err := h.checkMetadata(); err != nil {
		return nil, err
	}
	var end int64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		t.Offset = end
		size, err := t.check()
		if err != nil {
			return nil, err
		}
		next, ok := roundUp(end, size, h.Alignment)
		if !ok {
			return nil, fmt.Errorf("tensor %q: %w: the file exceeds 63 bits", t.Name, ErrShape)
		}
		end = next
	}
	text, err := h.encode()
	if err != nil {
		return nil, err
	}
	var ok bool
	h.DataOffset, _ = roundUp(int64(len(text)), 0, h.Alignment) // the header is far below 63 bits
	if h.FileBytes, ok = roundUp(end, h.DataOffset, 1); !ok {
		return nil, fmt.Errorf("%w: the file exceeds 63 bits", ErrShape)
	}
	return h.checked()
}

// roundUp returns at + n rounded up to a multiple of unit.
func roundUp(at, n, unit int64) (rounded int64, ok bool) {
	if n > math.MaxInt64-at-unit {
		return 0, false
	}
	return (at + n + unit - 1) / unit * unit, true
}

// ReadHeader reads and validates the header of a file of size bytes. It borrows r, and may read up to 64 KiB behind the
// header. Invalid input is the error of the violated rule; errors of r are wrapped.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	d := newDecoder(r, size)
	h, err := d.header()
	if err != nil {
		return nil, err
	}
	var ok bool
	if h.DataOffset, ok = roundUp(d.at, 0, h.Alignment); !ok {
		return nil, ErrAlignment
	}
	h.FileBytes = size
	if h.DataOffset > size {
		if len(h.Tensors) > 0 {
			return nil, fmt.Errorf("%w: it has %d bytes, and the data begins at %d", ErrTruncated, size, h.DataOffset)
		}
		h.DataOffset = size // a file of metadata alone may lack the padding
	}
	return h.checked()
}

// checked returns h if its tensors are valid.
func (h *Header) checked() (*Header, error) {
	if err := h.checkTensors(); err != nil {
		return nil, err
	}
	return h, nil
}

// checkMetadata validates the keys and sets the alignment.
func (h *Header) checkMetadata() error {
	for _, e := range h.Metadata {
		if e.Key == "" || len(e.Key) > maxKeyBytes {
			return fmt.Errorf("%w: its length is %d bytes, not 1 to %d", ErrKey, len(e.Key), maxKeyBytes)
		}
		if !utf8.ValidString(e.Key) {
			return fmt.Errorf("metadata key: %w", ErrUTF8)
		}
	}
	key := func(i uint32) string { return h.Metadata[i].Key }
	if twice, found := duplicate(len(h.Metadata), key); found {
		return fmt.Errorf("%w: %q occurs twice", ErrKey, twice)
	}
	h.Alignment = DefaultAlignment
	if value := h.Metadata.Get(alignmentKey); value != nil {
		a, ok := value.(uint32)
		if !ok || a == 0 || a&(a-1) != 0 {
			return fmt.Errorf("%w: %s is %v (%T), not a power of two as uint32", ErrAlignment, alignmentKey, value, value)
		}
		h.Alignment = int64(a)
	}
	return nil
}

// check validates the entry without its offset and returns the size of the tensor in bytes.
func (t *TensorInfo) check() (size int64, err error) {
	if t.Name == "" || len(t.Name) > maxNameBytes {
		return 0, fmt.Errorf("%w: its length is %d bytes, not 1 to %d", ErrName, len(t.Name), maxNameBytes)
	}
	if !utf8.ValidString(t.Name) {
		return 0, fmt.Errorf("tensor name: %w", ErrUTF8)
	}
	if len(t.Shape) > maxDimensions {
		return 0, fmt.Errorf("tensor %q: %w: %d dimensions, more than %d", t.Name, ErrShape, len(t.Shape), maxDimensions)
	}
	spec := tensor.Spec{DType: t.DType, Shape: t.Shape}
	if size, err = spec.Extent(); err != nil {
		return 0, fmt.Errorf("tensor %q: %w: %w", t.Name, ErrShape, err)
	}
	return size, nil
}

// checkTensors validates names, places and that no two tensors overlap.
func (h *Header) checkTensors() error {
	data, places := h.FileBytes-h.DataOffset, make([]uint32, 0, len(h.Tensors))
	for i := range h.Tensors {
		t := &h.Tensors[i]
		size, err := t.check()
		if err != nil {
			return err
		}
		switch {
		case t.Offset < 0 || t.Offset%h.Alignment != 0:
			return fmt.Errorf("tensor %q: %w: offset %d is not a multiple of %d", t.Name, ErrAlignment, t.Offset, h.Alignment)
		case t.Offset > data || size > data-t.Offset:
			return fmt.Errorf("tensor %q: %w: it needs %d bytes from %d of %d", t.Name, ErrTruncated, size, t.Offset, data)
		}
		if size > 0 {
			places = append(places, uint32(i))
		}
	}
	if twice, found := duplicate(len(h.Tensors), func(i uint32) string { return h.Tensors[i].Name }); found {
		return fmt.Errorf("%w: %q occurs twice", ErrName, twice)
	}
	slices.SortFunc(places, func(a, b uint32) int { return cmp.Compare(h.Tensors[a].Offset, h.Tensors[b].Offset) })
	for i := 1; i < len(places); i++ {
		if a, b := &h.Tensors[places[i-1]], &h.Tensors[places[i]]; b.Offset < a.Offset+a.Bytes() {
			return fmt.Errorf("%w: %q and %q", ErrOverlap, a.Name, b.Name)
		}
	}
	return nil
}

// duplicate returns one of n texts that occurs twice. A sorted list of numbers needs less memory than a map.
func duplicate(n int, text func(i uint32) string) (twice string, found bool) {
	order := make([]uint32, n) // a header has fewer entries than bytes
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(text(a), text(b)) })
	for i := 1; i < n; i++ {
		if t := text(order[i]); t == text(order[i-1]) {
			return t, true
		}
	}
	return "", false
}
