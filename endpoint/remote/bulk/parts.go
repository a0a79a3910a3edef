package bulk

import (
	"errors"
	"math"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxParts limits the parts received in one message. Each costs more memory than it takes on the wire.
const maxParts = 1 << 16

// Parts is a Message with a repeated bytes field: each value, called a part, is kept outside Head. It is not safe for
// concurrent use.
type Parts struct {
	// Head is the message without the parts. The caller must set it, also before receiving.
	Head proto.Message
	// Field is the number of the repeated bytes field.
	Field protowire.Number
	// Outer wraps the message: it is sent as this field of a message with no other fields. 0 means no wrapper. Use it
	// only to send, on a server or connection with the codec of this package.
	Outer protowire.Number
	// Name, if not nil, is the field with the name of the message. It is checked before the message is decoded.
	Name *Name

	parts []mem.BufferSlice // the message owns a reference to each buffer
	account
}

// Append adds a part and takes ownership of the references to its buffers.
func (p *Parts) Append(part mem.BufferSlice) { p.parts = append(p.parts, part) }

// List returns the received parts. They are borrowed and valid until Free.
func (p *Parts) List() []mem.BufferSlice {
	if p.parts != nil || p.Head == nil {
		return p.parts
	}
	// A different codec has put the field into Head.
	head, field := p.Head.ProtoReflect(), p.descriptor()
	if field == nil || !head.Has(field) {
		return nil
	}
	list := head.Get(field).List()
	for i := range list.Len() {
		p.parts = append(p.parts, mem.BufferSlice{mem.SliceBuffer(list.Get(i).Bytes())})
	}
	head.Clear(field)
	return p.parts
}

// Free releases the buffers of the parts and the charge of the message. The message can be reused.
func (p *Parts) Free() {
	for _, part := range p.parts {
		part.Free()
	}
	p.parts = nil
	p.account.close()
}

// Size returns the size of Head and the parts in bytes.
func (p *Parts) Size() int {
	size := 0
	if p.Head != nil {
		size = proto.Size(p.Head)
	}
	for _, part := range p.parts {
		size += part.Len()
	}
	return size
}

// ProtoReflect makes *Parts a proto.Message for codecs that do not support this package. It copies the parts into Head.
func (p *Parts) ProtoReflect() protoreflect.Message {
	head := p.Head.ProtoReflect()
	if field := p.descriptor(); p.parts != nil && field != nil {
		list := head.Mutable(field).List()
		for _, part := range p.parts {
			list.Append(protoreflect.ValueOfBytes(part.Materialize()))
		}
		p.Free()
	}
	return head
}

func (p *Parts) descriptor() protoreflect.FieldDescriptor {
	return p.Head.ProtoReflect().Descriptor().Fields().ByNumber(p.Field)
}

// marshal returns the encoding and transfers to it the references to the buffers of the parts.
func (p *Parts) marshal() (mem.BufferSlice, error) {
	size := proto.Size(p.Head)
	for _, part := range p.parts {
		n := part.Len()
		size += protowire.SizeTag(p.Field) + protowire.SizeBytes(n)
		if n > math.MaxInt32 || size > math.MaxInt32 {
			return nil, errors.New("more than 2 GiB in one message: ask for less at a time, or use shared memory")
		}
	}
	var b []byte
	if p.Outer != 0 {
		b = protowire.AppendTag(b, p.Outer, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(size))
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(b, p.Head)
	if err != nil {
		return nil, err
	}
	encoded := make(mem.BufferSlice, 0, 2*len(p.parts)+1)
	for _, part := range p.parts {
		b = protowire.AppendTag(b, p.Field, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(part.Len()))
		if part.Len() < inlined {
			for _, buffer := range part {
				b = append(b, buffer.ReadOnlyData()...)
			}
			part.Free()
			continue
		}
		encoded = append(append(encoded, mem.SliceBuffer(b)), part...)
		b = nil
	}
	p.parts = nil
	if b != nil {
		encoded = append(encoded, mem.SliceBuffer(b))
	}
	return encoded, nil
}

// inlined is the size up to which copying a part is cheaper than passing another buffer to the transport.
const inlined = 2 << 10

// unmarshal reads an encoding. The parts become views of its buffers; the rest is copied and decoded into Head.
func (p *Parts) unmarshal(encoded mem.BufferSlice, charged *Charged) error {
	p.Free()
	c := cursor{buffers: encoded, left: encoded.Len()}
	var rest []byte
	for c.left > 0 {
		tag, err := c.varint()
		if err != nil {
			return err
		}
		number, kind := protowire.DecodeTag(tag)
		if number < protowire.MinValidNumber {
			return errMessage
		}
		if number == p.Field && kind == protowire.BytesType {
			part, err := c.view()
			if err != nil {
				return err
			}
			if p.Append(part); len(p.parts) > maxParts {
				return errMessage
			}
			if err := charged.chargePart(len(p.parts)); err != nil {
				return err
			}
			continue
		}
		at := len(rest)
		rest = protowire.AppendVarint(rest, tag)
		if rest, err = c.appendValue(rest, kind); err != nil {
			return err
		}
		if p.Name.refuses(number, rest[at:]) {
			p.Free()
			rest = p.Name.kept(encoded)
			break
		}
	}
	if err := charged.charge(rest, p.Head); err != nil {
		return err
	}
	return proto.Unmarshal(rest, p.Head)
}
