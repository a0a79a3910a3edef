package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// A request's envelope is written and read by hand, for speed: it is in the way of every call, and the general codec
// takes most of a microsecond and four allocations for it. The bytes are the same, and so is what is refused; a fuzz
// test holds both against each other. Tags are let through inside the body: which of them an operation allows is for
// whoever decodes it.

// AppendRequest appends r to b, as [Marshal] would encode it, and returns the extended slice. r.Body must be nil or one
// encoded item; it is copied. A negative timeout has passed already and is sent as one nanosecond. The metadata must
// have passed [Metadata.Check].
func AppendRequest(b []byte, r Request) []byte {
	b = appendRequestHead(b, &r, len(r.Body) > 0)
	if len(r.Body) > 0 {
		b = append(append(b, 3), r.Body...)
	}
	return appendRequestTail(b, &r)
}

// appendRequestHead appends what stands in front of the body.
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

// appendRequestTail appends what stands behind the body.
func appendRequestTail(b []byte, r *Request) []byte {
	if len(r.Metadata) == 0 {
		return b
	}
	return appendMetadata(append(b, 4), r.Metadata)
}

// MarshalRequest encodes a request whose body is the message v, or empty where v is nil.
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

// ParseRequest decodes the body of a request frame, with the checks of [UnmarshalPayload]. The request's Body is a part
// of data, which must stay as it is while that is in use; it is well-formed, and checked further by whoever decodes it.
// Errors are [ErrEncoding], and [ErrBounds] where the envelope is one and what stands in it is beyond the bounds.
func ParseRequest(data []byte) (Request, error) {
	if r, ok := parsePlainRequest(data); ok {
		return r, nil
	}
	var r Request // apart from the one above, which stays on the stack
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

// definiteMap reports whether data begins as an envelope does: a map of few pairs.
func definiteMap(data []byte) bool {
	return len(data) > 0 && data[0] > cborMap<<5 && data[0] < cborMap<<5|24
}

// parsePlainRequest reads a request as AppendRequest writes it. Whatever else it is, valid or not, is for
// UnmarshalPayload.
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
	cborBytes    = 2
	cborText     = 3
	cborArray    = 4
	cborMap      = 5
	cborTag      = 6
)

// cborTrue is the simple value true.
const cborTrue = 0xf5

// appendHead writes the head of an item in the shortest form.
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
