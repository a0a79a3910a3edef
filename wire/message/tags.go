package message

import "fmt"

// Tags stand in one place of a message, the arguments or the result of a call, and only two of them. The general codec
// lets more through: it drops the tag of self-described CBOR (55799) wherever that stands, and reads others as what is
// inside of them. So messages that may hold tags are looked at here.

// checkPayloadTags refuses any tag but those of tensors and state dicts in an item that is well-formed.
func checkPayloadTags(item []byte) error {
	return eachTag(item, func(tag uint64) bool { return tag == TagTensor || tag == TagStateDict })
}

// checkEnvelopeTags refuses tags in an encoded map that is well-formed, but in the value under the key free those of a
// payload. A message that is no map is refused.
func checkEnvelopeTags(data []byte, free uint64) error {
	if len(data) == 0 || data[0]>>5 != cborMap {
		return fmt.Errorf("%w: the message is no map", ErrEncoding)
	}
	pairs, rest, ok := readLength(data)
	for ; ok && pairs > 0; pairs-- {
		var key, value RawMessage
		if key, rest, ok = cutItem(rest); !ok {
			break
		}
		if value, rest, ok = cutItem(rest); !ok {
			break
		}
		if err := eachTag(key, noTag); err != nil {
			return err
		}
		if n, _, isNumber := readUnsigned(key); isNumber && n == free {
			continue // its own message, or a payload: who decodes that looks at it
		}
		if err := eachTag(value, noTag); err != nil {
			return err
		}
	}
	if !ok {
		return fmt.Errorf("%w: the message ends too early", ErrEncoding)
	}
	return nil
}

func noTag(uint64) bool { return false }

// eachTag looks at every tag of a well-formed item and refuses those that are not allowed.
func eachTag(item []byte, allowed func(tag uint64) bool) error {
	for rest := item; len(rest) > 0; {
		major := rest[0] >> 5
		n, after, ok := readLength(rest)
		if !ok {
			return fmt.Errorf("%w: the item ends too early", ErrEncoding)
		}
		rest = after
		switch major {
		case cborBytes, cborText:
			if n > uint64(len(rest)) {
				return fmt.Errorf("%w: the item ends too early", ErrEncoding)
			}
			rest = rest[n:]
		case cborTag:
			if !allowed(n) {
				return fmt.Errorf("%w: tag %d is not allowed here", ErrEncoding, n)
			}
		}
	}
	return nil
}
