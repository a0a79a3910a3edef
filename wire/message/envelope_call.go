package message

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Calls and their answers are also encoded and decoded by hand, and a fuzz test compares them with the general codec.
// The content of arguments and results is checked by their decoders.

// CallParts is a decoded [Call] whose arguments are still encoded.
type CallParts struct {
	// Endpoint is the endpoint's name, valid UTF-8, part of the message.
	Endpoint []byte
	// Args holds the arguments, part of the message, not yet validated. Nil if there are none.
	Args RawMessage
	// Handles are the storages that the arguments refer to.
	Handles []Handle
	// SlabsReturned and SlabsDropped are those of [Call].
	SlabsReturned, SlabsDropped []uint64
	// Label is that of [Call].
	Label string
}

// ParseCall decodes a [Call] as [UnmarshalPayload] would, except for the content of the arguments. Endpoint and Args
// are parts of data, which must not change while they are in use. Errors are [ErrEncoding].
func ParseCall(data []byte) (CallParts, error) {
	if p, ok := parsePlainCall(data); ok {
		return p, nil
	}
	var c Call
	if err := unmarshalEnvelope(data, 2, &c); err != nil {
		return CallParts{}, err
	}
	return CallParts{
		Endpoint: []byte(c.Endpoint), Args: c.Args, Handles: c.Handles, SlabsReturned: c.SlabsReturned, SlabsDropped: c.SlabsDropped,
		Label: c.Label,
	}, nil
}

// parsePlainCall decodes a call without a label as AppendCallRequest writes it.
func parsePlainCall(data []byte) (p CallParts, ok bool) {
	if len(data) < 3 || data[0] < cborMap<<5|1 || data[0] > cborMap<<5|5 || data[1] != 1 {
		return CallParts{}, false
	}
	pairs := data[0] & 31
	name, rest, ok := readText(data[2:])
	if !ok {
		return CallParts{}, false
	}
	p.Endpoint = name
	if pairs--; pairs > 0 && len(rest) > 0 && rest[0] == 2 {
		if p.Args, rest, ok = cutItem(rest[1:]); !ok {
			return CallParts{}, false
		}
		pairs--
	}
	if pairs > 0 && len(rest) > 0 && rest[0] == 3 {
		if p.Handles, rest, ok = readHandles(rest[1:]); !ok {
			return CallParts{}, false
		}
		pairs--
	}
	for _, list := range []struct {
		key byte
		to  *[]uint64
	}{{4, &p.SlabsReturned}, {5, &p.SlabsDropped}} {
		if pairs > 0 && len(rest) > 1 && rest[0] == list.key {
			if *list.to, rest, ok = readNumbers(rest[1:]); !ok {
				return CallParts{}, false
			}
			pairs--
		}
	}
	return p, pairs == 0 && len(rest) == 0
}

// maxPlainNumbers is the maximum length of a list that is decoded by hand; the codec decodes longer ones.
const maxPlainNumbers = 4096

// readNumbers decodes an array of unsigned integers.
func readNumbers(b []byte) (list []uint64, rest []byte, ok bool) {
	if len(b) == 0 || b[0]>>5 != cborArray {
		return nil, nil, false
	}
	n, rest, ok := readLength(b)
	if !ok || n > maxPlainNumbers || n > uint64(len(rest)) {
		return nil, nil, false
	}
	list = make([]uint64, n)
	for i := range list {
		if len(rest) == 0 || rest[0]>>5 != cborUnsigned {
			return nil, nil, false
		}
		if list[i], rest, ok = readLength(rest); !ok {
			return nil, nil, false
		}
	}
	return list, rest, true
}

// appendNumbers appends a pair of key and numbers unless numbers is empty.
func appendNumbers(b []byte, key byte, numbers []uint64) []byte {
	if len(numbers) == 0 {
		return b
	}
	b = appendHead(append(b, key), cborArray, uint64(len(numbers)))
	for _, n := range numbers {
		b = appendHead(b, cborUnsigned, n)
	}
	return b
}

// AppendCallRequest appends a request whose body is the call, as [MarshalPayload] would encode both, and returns the
// extended slice. r.Body is not used. c.Args must be nil or one encoded item. The metadata must have passed
// [Metadata.Check]. Errors are [ErrEncoding].
func AppendCallRequest(b []byte, r Request, c Call) ([]byte, error) {
	if !utf8.ValidString(c.Endpoint) || !utf8.ValidString(c.Label) {
		return b, fmt.Errorf("%w: the endpoint's name or the label is not valid UTF-8", ErrEncoding)
	}
	b = appendRequestHead(b, &r, true)
	pairs := byte(1)
	if len(c.Args) > 0 {
		pairs++
	}
	for _, there := range [...]bool{len(c.Handles) > 0, len(c.SlabsReturned) > 0, len(c.SlabsDropped) > 0, c.Label != ""} {
		if there {
			pairs++
		}
	}
	b = append(b, 3, cborMap<<5|pairs, 1)
	b = append(appendHead(b, cborText, uint64(len(c.Endpoint))), c.Endpoint...)
	if len(c.Args) > 0 {
		b = append(append(b, 2), c.Args...)
	}
	b, err := appendHandles(b, 3, c.Handles)
	b = appendNumbers(appendNumbers(b, 4, c.SlabsReturned), 5, c.SlabsDropped)
	if c.Label != "" {
		b = append(appendHead(append(b, 6), cborText, uint64(len(c.Label))), c.Label...)
	}
	return appendRequestTail(b, &r), err
}

// AppendReturned appends the encoding of r, as [MarshalPayload] returns it, and returns the extended slice. r.Value
// must be nil or one encoded item. Errors are [ErrEncoding].
func AppendReturned(b []byte, r *Returned) ([]byte, error) {
	var pairs byte
	for _, there := range [...]bool{len(r.Value) > 0, len(r.Handles) > 0, r.Object != nil, r.Cached} {
		if there {
			pairs++
		}
	}
	b = append(b, cborMap<<5|pairs)
	if len(r.Value) > 0 {
		b = append(append(b, 1), r.Value...)
	}
	b, err := appendHandles(b, 2, r.Handles)
	if err != nil {
		return b, err
	}
	if r.Object != nil {
		item, err := Marshal(r.Object)
		if err != nil {
			return b, err
		}
		b = append(append(b, 3), item...)
	}
	if r.Cached {
		b = append(b, 4, cborTrue)
	}
	return b, nil
}

// ParseReturned decodes a [Returned] as [UnmarshalPayload] would, except for the content of the value, which is part of
// data. data must not change while it is in use. Errors are [ErrEncoding].
func ParseReturned(data []byte) (Returned, error) {
	if r, ok := parsePlainReturned(data); ok {
		return r, nil
	}
	var r Returned
	err := unmarshalEnvelope(data, 1, &r)
	return r, err
}

// parsePlainReturned decodes an answer that consists of a value and optionally handles and Cached.
func parsePlainReturned(data []byte) (r Returned, ok bool) {
	if len(data) < 3 || data[0] < cborMap<<5|1 || data[0] > cborMap<<5|3 || data[1] != 1 {
		return Returned{}, false
	}
	value, rest, ok := cutItem(data[2:])
	if !ok {
		return Returned{}, false
	}
	r.Value = value
	pairs := data[0]&31 - 1
	if pairs > 0 && len(rest) > 0 && rest[0] == 2 {
		if r.Handles, rest, ok = readHandles(rest[1:]); !ok {
			return Returned{}, false
		}
		pairs--
	}
	if pairs > 0 && len(rest) == 2 && rest[0] == 4 && rest[1] == cborTrue {
		r.Cached, rest = true, nil
		pairs--
	}
	return r, pairs == 0 && len(rest) == 0
}

// readText decodes a text string of definite length.
func readText(b []byte) (text, rest []byte, ok bool) {
	if len(b) == 0 || b[0]>>5 != cborText {
		return nil, nil, false
	}
	n, rest, ok := readLength(b)
	if !ok || n > uint64(len(rest)) || !utf8.Valid(rest[:n]) {
		return nil, nil, false
	}
	return rest[:n:n], rest[n:], true
}

// readLength decodes the argument of an item's head (RFC 8949 §3).
func readLength(b []byte) (n uint64, rest []byte, ok bool) {
	info := b[0] & 31
	b = b[1:]
	if info < 24 {
		return uint64(info), b, true
	}
	if info > 27 || len(b) < 1<<(info-24) {
		return 0, nil, false
	}
	switch info {
	case 24:
		return uint64(b[0]), b[1:], true
	case 25:
		return uint64(binary.BigEndian.Uint16(b)), b[2:], true
	case 26:
		return uint64(binary.BigEndian.Uint32(b)), b[4:], true
	}
	return binary.BigEndian.Uint64(b), b[8:], true
}

// cutItem splits off the first item. It checks only the heads; the decoder of the item checks the rest.
func cutItem(data []byte) (item RawMessage, rest []byte, ok bool) {
	rest = data
	for left := uint64(1); left > 0; left-- {
		if len(rest) == 0 {
			return nil, nil, false
		}
		major := rest[0] >> 5
		n, after, ok := readLength(rest)
		if !ok {
			return nil, nil, false
		}
		rest = after
		switch major {
		case cborBytes, cborText:
			if n > uint64(len(rest)) {
				return nil, nil, false
			}
			rest = rest[n:]
		case cborArray, cborMap:
			if n > uint64(len(rest)) { // each element has at least one byte
				return nil, nil, false
			}
			if major == cborMap {
				n *= 2
			}
			left += n
		case cborTag:
			left++
		}
	}
	n := len(data) - len(rest)
	return RawMessage(data[:n:n]), rest, true
}
