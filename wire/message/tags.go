package message

import "fmt"

// A message may contain tags only in the arguments or the result of a call, and only two tags. The general codec
// accepts more: it drops the tag of self-described CBOR (55799) anywhere and reads other tags as their content.
// Messages that may contain tags are therefore checked here.

// checkPayloadTags refuses tags other than those of tensors and state dicts in a well-formed item.
func checkPayloadTags(item []byte) error {
	return eachTag(item, func(tag uint64) bool { return tag == TagTensor || tag == TagStateDict })
}

// checkEnvelopeTags refuses tags in a well-formed map, except those of a payload under the key free. A message that is
// not a map is refused.
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
			continue // a message or payload whose decoder checks it
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

// eachTag checks every tag of a well-formed item.
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
