package message

import "iter"

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
