package message

import (
	"iter"
	"unicode/utf8"
)

// Major types of CBOR items (RFC 8949 §3.1).
const (
	MajorBytes = cborBytes
	MajorText  = cborText
	MajorArray = cborArray
	MajorMap   = cborMap
	MajorTag   = cborTag
)

// Cut returns the first item of validated data without a copy, and the rest. It returns false for truncated data.
func Cut(data []byte) (item RawMessage, rest []byte, ok bool) { return cutItem(data) }

// Head returns the major type and the argument of the first item of validated data, and what follows its head: the
// content of a text or of bytes, or the first item of an array, map or tag. It returns false for truncated data.
func Head(data []byte) (major byte, n uint64, rest []byte, ok bool) {
	if len(data) == 0 {
		return 0, 0, nil, false
	}
	n, rest, ok = readLength(data)
	return data[0] >> 5, n, rest, ok
}

// AppendHead appends the head of an item: a text or bytes of n bytes, an array of n elements, or a map of n pairs.
func AppendHead(b []byte, major byte, n int) []byte { return appendHead(b, major, uint64(n)) }

// InvalidText returns the first text of a well-formed item that is not UTF-8, or nil.
func InvalidText(item []byte) []byte {
	for rest := item; len(rest) > 0; {
		major, n, after, ok := Head(rest)
		if !ok {
			return nil
		}
		rest = after
		if major == cborBytes || major == cborText {
			if n > uint64(len(rest)) {
				return nil
			}
			if major == cborText && !utf8.Valid(rest[:n]) {
				return rest[:n]
			}
			rest = rest[n:]
		}
	}
	return nil
}

// Items returns the elements of an encoded array, or nothing for another item. The data must have been validated; the
// rest of truncated data is omitted.
func Items(array []byte) iter.Seq[RawMessage] {
	return func(yield func(RawMessage) bool) {
		if len(array) == 0 || array[0]>>5 != cborArray {
			return
		}
		n, rest, ok := readLength(array)
		for ; ok && n > 0; n-- {
			var item RawMessage
			if item, rest, ok = cutItem(rest); ok && !yield(item) {
				return
			}
		}
	}
}

// Pairs returns the keys and values of an encoded map, as Items does for an array.
func Pairs(encoded []byte) iter.Seq2[RawMessage, RawMessage] {
	return func(yield func(RawMessage, RawMessage) bool) {
		if len(encoded) == 0 || encoded[0]>>5 != cborMap {
			return
		}
		n, rest, ok := readLength(encoded)
		for ; ok && n > 0; n-- {
			var key, value RawMessage
			if key, rest, ok = cutItem(rest); !ok {
				return
			}
			if value, rest, ok = cutItem(rest); ok && !yield(key, value) {
				return
			}
		}
	}
}

// Text returns an encoded text without a copy, or false for another item.
func Text(item []byte) (text []byte, ok bool) {
	text, rest, ok := readText(item)
	return text, ok && len(rest) == 0
}
