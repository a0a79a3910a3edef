package message

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf8"
)

// Handles of calls and answers are encoded and decoded by hand too. The bytes and the refusals are those of the codec.

// maxPlainHandles is the maximum number of handles that are decoded by hand; the codec decodes longer lists.
const maxPlainHandles = 4096

// appendHandles appends a pair of key and handles unless handles is empty. Errors are [ErrEncoding].
func appendHandles(b []byte, key byte, handles []Handle) ([]byte, error) {
	if len(handles) == 0 {
		return b, nil
	}
	b = appendHead(append(b, key), cborArray, uint64(len(handles)))
	for i := range handles {
		h := &handles[i]
		if !utf8.ValidString(h.Kind) || !utf8.ValidString(h.Name) {
			return b, fmt.Errorf("%w: a text of a handle is not valid UTF-8", ErrEncoding)
		}
		b = h.appendTo(b)
	}
	return b, nil
}

// appendTo appends the encoding of a handle.
func (h *Handle) appendTo(b []byte) []byte {
	pairs := byte(5)
	for _, there := range [...]bool{len(h.Blob) > 0, h.Name != "", h.Storage != 0, h.Version != 0, h.Slab != 0, h.SlabBytes != 0} {
		if there {
			pairs++
		}
	}
	b = append(b, cborMap<<5|pairs, 1)
	b = append(appendHead(b, cborText, uint64(len(h.Kind))), h.Kind...)
	b = append(append(b, 2, cborBytes<<5|16), h.Device[:]...)
	b = appendHead(append(b, 3), cborUnsigned, h.Bytes)
	b = appendHead(append(b, 4), cborUnsigned, h.Offset)
	if len(h.Blob) > 0 {
		b = append(appendHead(append(b, 5), cborBytes, uint64(len(h.Blob))), h.Blob...)
	}
	b = append(b, 6)
	if h.File < 0 {
		b = appendHead(b, cborNegative, uint64(-1-int64(h.File)))
	} else {
		b = appendHead(b, cborUnsigned, uint64(h.File))
	}
	if h.Name != "" {
		b = append(appendHead(append(b, 7), cborText, uint64(len(h.Name))), h.Name...)
	}
	for i, n := range [...]uint64{h.Storage, h.Version, h.Slab, h.SlabBytes} {
		if n != 0 {
			b = appendHead(append(b, byte(8+i)), cborUnsigned, n)
		}
	}
	return b
}

// readHandles decodes an array of handles whose keys ascend. Memory within the frame is part of b.
func readHandles(b []byte) (list []Handle, rest []byte, ok bool) {
	if len(b) == 0 || b[0]>>5 != cborArray {
		return nil, nil, false
	}
	n, rest, ok := readLength(b)
	if !ok || n > maxPlainHandles || n > uint64(len(rest)) {
		return nil, nil, false
	}
	list = make([]Handle, 0, min(n, 16))
	for range n {
		var h Handle
		if rest, ok = h.readFrom(rest); !ok {
			return nil, nil, false
		}
		list = append(list, h)
	}
	return list, rest, true
}

// readFrom decodes a handle.
func (h *Handle) readFrom(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 || b[0] < cborMap<<5 || b[0] > cborMap<<5|11 {
		return nil, false
	}
	last := byte(0)
	rest = b[1:]
	for range b[0] & 31 {
		if len(rest) < 2 || rest[0] <= last || rest[0] > 11 {
			return nil, false
		}
		last = rest[0]
		if rest, ok = h.readField(last, rest[1:]); !ok {
			return nil, false
		}
	}
	if !h.Inline() {
		h.Blob = bytes.Clone(h.Blob) // drivers keep it
	}
	return rest, true
}

// readField decodes the value of a key.
func (h *Handle) readField(key byte, b []byte) (rest []byte, ok bool) {
	major := b[0] >> 5
	switch key {
	case 1, 7:
		text, rest, ok := readText(b)
		if key == 7 {
			h.Name = string(text)
		} else {
			h.Kind = kindName(text)
		}
		return rest, ok
	case 2:
		if len(b) < 17 || b[0] != cborBytes<<5|16 {
			return nil, false
		}
		copy(h.Device[:], b[1:])
		return b[17:], true
	case 5:
		n, rest, ok := readLength(b)
		if !ok || major != cborBytes || n > uint64(len(rest)) {
			return nil, false
		}
		h.Blob = rest[:n:n]
		return rest[n:], true
	}
	n, rest, ok := readLength(b)
	if !ok {
		return nil, false
	}
	if key == 6 {
		if n > math.MaxInt32 || major != cborUnsigned && major != cborNegative {
			return nil, false
		}
		h.File = int32(n)
		if major == cborNegative {
			h.File = -1 - h.File
		}
		return rest, true
	}
	*[...]*uint64{3: &h.Bytes, 4: &h.Offset, 8: &h.Storage, 9: &h.Version, 10: &h.Slab, 11: &h.SlabBytes}[key] = n
	return rest, major == cborUnsigned
}

// kindName returns a kind without allocating memory for the frequent ones.
func kindName(text []byte) string {
	switch string(text) {
	case "memfd":
		return "memfd"
	case HandleInline:
		return HandleInline
	}
	return string(text)
}
