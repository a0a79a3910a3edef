package bulk

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Charged receives a message and charges its memory before it is decoded. A message can take more than a hundred times the memory
// of its encoding. Use it only with the codec of this package.
type Charged struct {
	// Message is decoded: a *Message, *Parts or proto.Message.
	Message any
	// Charge charges bytes. Its error ends the decoding. It is not called for small messages.
	Charge func(n int64) error
}

// account holds the charges of a received message, in the order of the budgets that it passed.
type account struct{ first, second func() }

// Own makes the message own a charge of its memory: Free calls release. A message can have two charges.
func (a *account) Own(release func()) {
	if a.first == nil {
		a.first = release
		return
	}
	a.second = release
}

func (a *account) close() {
	if a.first != nil {
		a.first()
	}
	if a.second != nil {
		a.second()
	}
	a.first, a.second = nil, nil
}

// Estimates of memory in bytes.
const (
	uncharged   = 512 // encodings up to this size are not charged
	objectBytes = 192 // a message, with its place in a list
	entryBytes  = 256 // an entry of a map
	textBytes   = 48  // a text or bytes field, without its bytes
	numberBytes = 24  // a number in a list, and its encoding as an element
	partBytes   = 160 // a part
	freeParts   = 64  // parts of a message that are not charged
)

// maxDepth limits the nesting of messages that decodedBytes follows. The messages of the gateway have fewer levels. Deeper ones are
// charged by their encoding.
const maxDepth = 16

// charge charges the memory of a message that is decoded from b. A nil Charged charges nothing.
func (c *Charged) charge(b []byte, m proto.Message) error {
	if c == nil || len(b) <= uncharged {
		return nil
	}
	return c.Charge(int64(len(b)) + decodedBytes(b, m.ProtoReflect().Descriptor(), maxDepth))
}

// chargePart charges the n-th part of a message, in groups.
func (c *Charged) chargePart(n int) error {
	if c == nil || n == 0 || n%freeParts != 0 {
		return nil
	}
	return c.Charge(freeParts * partBytes)
}

// unmarshal decodes data, which it borrows.
func (c codec) unmarshal(data mem.BufferSlice, v any, charged *Charged) error {
	m, ok := v.(proto.Message)
	if charged == nil || !ok || data.Len() <= uncharged {
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	if err := charged.charge(whole.ReadOnlyData(), m); err != nil {
		return err
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{whole}, v)
}

// decodedBytes estimates the memory of a message without decoding it. It stops at a bad encoding, where decoding fails too.
func decodedBytes(b []byte, m protoreflect.MessageDescriptor, depth int) (total int64) {
	fields := m.Fields()
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return total
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return total
		}
		value := b[:n]
		b = b[n:]
		field := fields.ByNumber(number)
		switch {
		case field == nil: // kept as it is
			total += 2 * int64(len(value)+protowire.SizeTag(number))
		case kind != protowire.BytesType:
			total += numberBytes
		default:
			value, _ = protowire.ConsumeBytes(value)
			total += fieldBytes(value, field, depth)
		}
	}
	return total
}

// fieldBytes estimates the memory of a field with a length.
func fieldBytes(value []byte, field protoreflect.FieldDescriptor, depth int) int64 {
	switch kind := field.Kind(); {
	case field.Message() != nil && depth == 0:
		return objectBytes + int64(len(value))
	case field.IsMap():
		return entryBytes + decodedBytes(value, field.Message(), depth-1)
	case field.Message() != nil:
		return objectBytes + decodedBytes(value, field.Message(), depth-1)
	case kind == protoreflect.StringKind || kind == protoreflect.BytesKind:
		return textBytes + int64(len(value))
	}
	n := int64(0) // packed numbers: the last byte of a varint is below 0x80
	switch field.Kind() {
	case protoreflect.FloatKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		n = int64(len(value)) / 4
	case protoreflect.DoubleKind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		n = int64(len(value)) / 8
	default:
		for _, one := range value {
			if one < 0x80 {
				n++
			}
		}
	}
	return n * numberBytes
}
