package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// The envelope of a request is encoded and decoded by hand because every call passes through it, and the general codec
// takes most of a microsecond and four allocations. The bytes and the refusals are the same; a fuzz test compares both.
// Tags inside the body are accepted here: the decoder of the body decides which of them its operation allows.

// AppendRequest appends the encoding of r, as [Marshal] returns it, and returns the extended slice. r.Body must be nil
// or one encoded item; it is copied. A negative timeout has expired and is sent as one nanosecond. The metadata must
// have passed [Metadata.Check].
func AppendRequest(b []byte, r Request) []byte {
	b = appendRequestHead(b, &r, len(r.Body) > 0)
	if len(r.Body) > 0 {
		b = append(append(b, 3), r.Body...)
	}
	return appendRequestTail(b, &r)
}

// appendRequestHead appends the part before the body.
func appendRequestHead(b []byte, r *Request, body bool) []byte {
	pairs := byte(1)
	for _, there := range [...]bool{r.Timeout != 0, body, len(r.Metadata) > 0} {
		if there {
			pairs++
		}
	}
	b = append(b, cborMap<<5|pairs, 1)
	b = appendHead(b, cborUnsigned, uint64(r.Op))
	if r.Timeout != 0 {
		t := r.Timeout
		if t < 0 {
			t = time.Nanosecond
		}
		b = appendHead(append(b, 2), cborUnsigned, uint64(t))
	}
	return b
}

// appendRequestTail appends the part after the body.
func appendRequestTail(b []byte, r *Request) []byte {
	if len(r.Metadata) == 0 {
		return b
	}
	return appendMetadata(append(b, 4), r.Metadata)
}

// MarshalRequest encodes a request whose body is the message v, or empty if v is nil.
func MarshalRequest(op Op, timeout time.Duration, v any) ([]byte, error) {
	r := Request{Op: op, Timeout: timeout}
	if v != nil {
		body, err := Marshal(v)
		if err != nil {
			return nil, err
		}
		r.Body = body
	}
	return AppendRequest(make([]byte, 0, 24+len(r.Body)), r), nil
}

// ParseRequest decodes the body of a request frame with the checks of [UnmarshalPayload]. The request's Body is part of
// data, which must not change while it is in use. It is well-formed; its decoder checks the rest. Errors are
// [ErrEncoding], and [ErrBounds] if the envelope is valid but its content exceeds the bounds.
func ParseRequest(data []byte) (Request, error) {
	if r, ok := parsePlainRequest(data); ok {
		return r, nil
	}
	var r Request // separate from the one above, which stays on the stack
	if err := unmarshalEnvelope(data, 3, &r); err != nil {
		if errors.Is(err, ErrBounds) && !definiteMap(data) {
			return Request{}, fmt.Errorf("%w: request that is no map of definite length", ErrEncoding)
		}
		return Request{}, err
	}
	if r.Timeout < 0 {
		return Request{}, fmt.Errorf("%w: request with a timeout of %d ns", ErrEncoding, r.Timeout)
	}
	return r, nil
}

// definiteMap reports whether data begins like an envelope: a map of few pairs.
func definiteMap(data []byte) bool {
	return len(data) > 0 && data[0] > cborMap<<5 && data[0] < cborMap<<5|24
}

// parsePlainRequest decodes a request as AppendRequest writes it. It returns false for everything else, which
// UnmarshalPayload then decodes or refuses.
func parsePlainRequest(data []byte) (r Request, ok bool) {
	if len(data) < 3 || data[0] < cborMap<<5|1 || data[0] > cborMap<<5|4 || data[1] != 1 {
		return Request{}, false
	}
	pairs := data[0] & 31
	op, rest, ok := readUnsigned(data[2:])
	if !ok || op > math.MaxUint16 {
		return Request{}, false
	}
	r.Op = Op(op)
	if pairs--; pairs > 0 && len(rest) > 0 && rest[0] == 2 {
		var t uint64
		if t, rest, ok = readUnsigned(rest[1:]); !ok || t > math.MaxInt64 {
			return Request{}, false
		}
		r.Timeout = time.Duration(t)
		pairs--
	}
	if pairs == 0 {
		return r, len(rest) == 0
	}
	if len(rest) < 2 || rest[0] != 3 {
		return Request{}, false
	}
	body := RawMessage(rest[1:len(rest):len(rest)])
	if pairs == 2 {
		if r.Metadata, body, ok = parseTail(rest[1:]); !ok {
			return Request{}, false
		}
	}
	if pairs > 2 || payloadDecMode.Wellformed(body) != nil {
		return Request{}, false
	}
	r.Body = body
	return r, true
}

// parseTail splits a body from the metadata that follows it.
func parseTail(data []byte) (m Metadata, body RawMessage, ok bool) {
	body, rest, ok := cutItem(data)
	if !ok || len(rest) < 2 || rest[0] != 4 {
		return nil, nil, false
	}
	m, err := parseMetadata(rest[1:])
	return m, body, err == nil
}

// The major types of CBOR (RFC 8949 §3.1) in an envelope.
const (
	cborUnsigned = 0
	cborNegative = 1
	cborBytes    = 2
	cborText     = 3
	cborArray    = 4
	cborMap      = 5
	cborTag      = 6
)

// cborTrue is the simple value true.
const cborTrue = 0xf5

// appendHead appends the head of an item in the shortest form.
func appendHead(b []byte, major byte, n uint64) []byte {
	major <<= 5
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}

// readUnsigned reads an unsigned integer of any length.
func readUnsigned(b []byte) (n uint64, rest []byte, ok bool) {
	if len(b) == 0 || b[0] > cborUnsigned<<5|27 {
		return 0, nil, false
	}
	info := b[0]
	b = b[1:]
	if info < 24 {
		return uint64(info), b, true
	}
	size := 1 << (info - 24)
	if len(b) < size {
		return 0, nil, false
	}
	for i := range size {
		n = n<<8 | uint64(b[i])
	}
	return n, b[size:], true
}
