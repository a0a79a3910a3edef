package safetensors

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// NewHeader returns the header of a new file. Begin and End of the tensors are ignored and computed: the order in the
// file is that of the reference implementation, widest alignment first and then by name. It borrows the slice, and
// shares the shapes and the metadata. It refuses everything that [ReadHeader] refuses, with the same errors.
func NewHeader(tensors []TensorInfo, metadata map[string]string) (*Header, error) {
	infos := slices.Clone(tensors)
	slices.SortStableFunc(infos, byRank)
	if err := checkNames(infos); err != nil {
		return nil, err
	}
	var at int64
	for i := range infos {
		t := &infos[i]
		bytes, err := checkInfo(t)
		if err == nil && at > math.MaxInt64-MaxHeaderBytes-prefixBytes-bytes {
			err = fmt.Errorf("%w: the file would be too long", ErrOverflow)
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		t.Begin, t.End = at, at+bytes
		at = t.End
	}
	h := &Header{Tensors: infos, Metadata: metadata}
	text, err := h.Encode()
	if err != nil {
		return nil, err
	}
	h.DataOffset = int64(len(text))
	h.FileBytes = h.DataOffset + at
	return h, nil
}

// checkNames refuses duplicate and reserved names.
func checkNames(infos []TensorInfo) error {
	seen := make(map[string]struct{}, len(infos))
	for i := range infos {
		name := infos[i].Name
		if name == metadataKey {
			return fmt.Errorf("%w: %s", ErrReservedName, name)
		}
		if _, twice := seen[name]; twice {
			return fmt.Errorf("%w: %s", ErrDuplicateName, quote(name))
		}
		seen[name] = struct{}{}
	}
	return nil
}

// checkInfo checks one tensor and returns its length in the file.
func checkInfo(t *TensorInfo) (int64, error) {
	if _, err := Name(t.DType); err != nil {
		return 0, err
	}
	for _, n := range t.Shape {
		if n < 0 {
			return 0, fmt.Errorf("%w: %v", ErrShape, t.Shape)
		}
	}
	if len(t.Shape) > tensor.MaxRank {
		return 0, fmt.Errorf("%w: more than %d dimensions", ErrShape, tensor.MaxRank)
	}
	return byteLen(t.DType, t.Shape)
}

// Encode returns the beginning of the file: the length, the JSON, and spaces up to the next multiple of 8 bytes. For a
// header from [NewHeader] it is exactly DataOffset bytes long; a header that was read may have had other spacing.
// Metadata keys are sorted, so equal headers give equal bytes.
func (h *Header) Encode() ([]byte, error) {
	b := make([]byte, prefixBytes, prefixBytes+64+len(h.Tensors)*96)
	b = append(b, '{')
	if h.Metadata != nil {
		b = appendQuoted(b, metadataKey)
		b = append(b, ":{"...)
		for i, key := range slices.Sorted(maps.Keys(h.Metadata)) {
			value := h.Metadata[key]
			if !utf8.ValidString(key) || !utf8.ValidString(value) {
				return nil, fmt.Errorf("%w: %w: key %s", ErrMetadata, ErrUTF8, quote(key))
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = appendQuoted(b, key)
			b = append(b, ':')
			b = appendQuoted(b, value)
		}
		b = append(b, "},"...)
	}
	for i := range h.Tensors {
		var err error
		if b, err = h.Tensors[i].appendEntry(b); err != nil {
			return nil, err
		}
		b = append(b, ',')
	}
	if b[len(b)-1] == ',' {
		b = b[:len(b)-1]
	}
	b = append(b, '}')
	for len(b)%prefixBytes != 0 {
		b = append(b, ' ')
	}
	if len(b)-prefixBytes > MaxHeaderBytes {
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d", ErrHeaderTooLarge, len(b)-prefixBytes, MaxHeaderBytes)
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-prefixBytes))
	return b, nil
}

// appendEntry appends the tensor's key and value.
func (t *TensorInfo) appendEntry(b []byte) ([]byte, error) {
	name, err := Name(t.DType)
	if err == nil && !utf8.ValidString(t.Name) {
		err = ErrUTF8
	}
	if err != nil {
		return nil, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
	}
	b = appendQuoted(b, t.Name)
	b = append(b, `:{"dtype":"`...)
	b = append(b, name...)
	b = append(b, `","shape":[`...)
	for i, n := range t.Shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	b = append(b, `],"data_offsets":[`...)
	b = strconv.AppendInt(b, t.Begin, 10)
	b = append(b, ',')
	b = strconv.AppendInt(b, t.End, 10)
	return append(b, "]}"...), nil
}

// appendQuoted appends s, which is UTF-8, as a JSON string with the minimum of escapes, in their shortest form.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		case strings.IndexByte("\b\f\n\r\t", c) >= 0:
			b = append(b, '\\', "bfnrt"[strings.IndexByte("\b\f\n\r\t", c)])
		default:
			b = append(b, `\u00`...)
			b = append(b, hex[c>>4], hex[c&15])
		}
	}
	return append(b, '"')
}
