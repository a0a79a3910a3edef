package bulk

import (
	"errors"
	"math"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// errMessage is returned for an encoding that is not one protobuf message.
var errMessage = errors.New("bad protobuf encoding")

// Message is a protobuf message with one bytes field that is kept outside Head. A received message owns its bytes and the
// charge of its memory: Free releases both, so a handler cannot hold the bytes without the charge. It is not safe for concurrent
// use.
type Message struct {
	// Head is the message without the large field. The caller must set it, also before receiving.
	Head proto.Message
	// Field is the number of the large field, which must be a singular bytes field.
	Field protowire.Number
	// Extra holds encoded fields of Head that are sent after those set in Head. Encoding fields that every message
	// shares once is cheaper than encoding them each time. Borrowed. Receiving does not change it.
	Extra []byte
	// Name, if not nil, is the field with the name of the message. It is checked before the message is decoded.
	Name *Name

	data mem.BufferSlice // the large field; the message owns a reference to each buffer
	account
}

// SetData sets the large field and takes ownership of the references to its buffers. It frees the previous value.
func (m *Message) SetData(data mem.BufferSlice) {
	m.data.Free()
	m.data = data
}

// Data returns the received large field. It is borrowed and valid until Free.
func (m *Message) Data() mem.BufferSlice {
	if m.data != nil || m.Head == nil {
		return m.data
	}
	// A different codec has put the field into Head.
	head, field := m.Head.ProtoReflect(), m.descriptor()
	if field == nil || !head.Has(field) {
		return nil
	}
	m.data = mem.BufferSlice{mem.SliceBuffer(head.Get(field).Bytes())}
	head.Clear(field)
	return m.data
}

// Free releases the buffers of the large field and the charge of the message. The message can be reused.
func (m *Message) Free() {
	m.data.Free()
	m.data = nil
	m.account.close()
}

// Size returns the size of Head and the large field in bytes.
func (m *Message) Size() int {
	if m.Head == nil {
		return m.data.Len()
	}
	return proto.Size(m.Head) + m.data.Len()
}

// ProtoReflect makes *Message a proto.Message for codecs that do not support this package. It copies the large field
// and Extra into Head.
func (m *Message) ProtoReflect() protoreflect.Message {
	head := m.Head.ProtoReflect()
	if m.Extra != nil {
		head.SetUnknown(append(head.GetUnknown(), m.Extra...)) // encoded unchanged
		m.Extra = nil
	}
	if field := m.descriptor(); m.data != nil && field != nil {
		head.Set(field, protoreflect.ValueOfBytes(m.data.Materialize()))
		m.Free()
	}
	return head
}

func (m *Message) descriptor() protoreflect.FieldDescriptor {
	return m.Head.ProtoReflect().Descriptor().Fields().ByNumber(m.Field)
}

// marshal returns the encoding and transfers to it the references to the buffers of the large field.
func (m *Message) marshal() (mem.BufferSlice, error) {
	n := m.data.Len()
	if n > math.MaxInt32 {
		return nil, errors.New("more than 2 GiB in one message: send it in chunks")
	}
	size := proto.Size(m.Head) + len(m.Extra) + 2*protowire.SizeVarint(math.MaxUint32)
	head, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, 0, size), m.Head)
	if err != nil {
		return nil, err
	}
	head = append(head, m.Extra...)
	if m.data == nil {
		return mem.BufferSlice{mem.SliceBuffer(head)}, nil
	}
	head = protowire.AppendTag(head, m.Field, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(n))
	encoded := make(mem.BufferSlice, 0, 1+len(m.data))
	encoded = append(encoded, mem.SliceBuffer(head))
	encoded = append(encoded, m.data...)
	m.data = nil
	return encoded, nil
}

// unmarshal reads an encoding. The large field becomes views of its buffers; the rest is copied and decoded into Head.
func (m *Message) unmarshal(encoded mem.BufferSlice, charged *Charged) error {
	m.Free()
	c := cursor{buffers: encoded, left: encoded.Len()}
	rest := make([]byte, 0, headBytes)
	for c.left > 0 {
		tag, err := c.varint()
		if err != nil {
			return err
		}
		number, kind := protowire.DecodeTag(tag)
		if number < protowire.MinValidNumber {
			return errMessage
		}
		if number == m.Field && kind == protowire.BytesType {
			data, err := c.view()
			if err != nil {
				return err
			}
			m.SetData(data) // if the field is repeated, the last value counts
			continue
		}
		at := len(rest)
		rest = protowire.AppendVarint(rest, tag)
		if rest, err = c.appendValue(rest, kind); err != nil {
			return err
		}
		if m.Name.refuses(number, rest[at:]) {
			m.Free()
			rest = m.Name.kept(encoded)
			break
		}
	}
	if err := charged.charge(rest, m.Head); err != nil {
		return err
	}
	return proto.Unmarshal(rest, m.Head)
}

// headBytes is the usual size of a message without its large field.
const headBytes = 128

// Stream is the sending side of a gRPC stream.
type Stream interface {
	// SendMsg sends a message.
	SendMsg(m any) error
}

// Send sends m and takes ownership of its large field, also if sending fails. The buffers are freed when the transport
// has written them, possibly long after Send returns. Their bytes must not be written to before that.
func Send(s Stream, m *Message) error {
	defer m.Free() // frees the data if the codec was not reached
	return s.SendMsg(m)
}
