package message

import "iter"

// Items are the elements of an encoded array, as they stand there; none of another item. The data is one that the
// codec has read: of one that is cut off the rest is left out.
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

// Pairs are the keys and values of an encoded map, as Items are the elements of an array.
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

// Text is an encoded text, without a copy; false for another item.
func Text(item []byte) (text []byte, ok bool) {
	text, rest, ok := readText(item)
	return text, ok && len(rest) == 0
}
