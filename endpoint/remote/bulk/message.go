package bulk

import (
	"errors"
	"math"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// errMessage is an encoding that is not one message of protobuf.
var errMessage = errors.New("bad protobuf encoding")

// Message is a protobuf message of which one field of bytes lies apart. It is not safe for concurrent use.
type Message struct {
	// Head is the message without the large field. The caller sets it, also to receive.
	Head proto.Message
	// Field is the number of the large field, a singular one of bytes.
	Field protowire.Number
	// Extra are fields of Head in their encoding, which are sent beside those that Head has: encoding what is the same
	// in each message once is cheaper than encoding it each time. Borrowed. Receiving leaves it alone.
	Extra []byte

	data mem.BufferSlice // the large field; the message has a reference to each buffer
}

// SetData makes data the large field and takes the caller's references to its buffers. What was there before is freed.
func (m *Message) SetData(data mem.BufferSlice) {
	m.data.Free()
	m.data = data
}

// TakeData returns the large field as it was received. The references to the buffers are the caller's, who frees them;
// the message has none any more.
func (m *Message) TakeData() mem.BufferSlice {
	data := m.data
	m.data = nil
	if data != nil || m.Head == nil {
		return data
	}
	// A codec other than ours has put the field into the message.
	head, field := m.Head.ProtoReflect(), m.descriptor()
	if field == nil || !head.Has(field) {
		return nil
	}
	data = mem.BufferSlice{mem.SliceBuffer(head.Get(field).Bytes())}
	head.Clear(field)
	return data
}

// Free gives the buffers of the large field back. The message can be used again.
func (m *Message) Free() {
	m.data.Free()
	m.data = nil
}

// ProtoReflect makes a *Message a proto.Message for codecs that know nothing of this package. It copies the large field
// and Extra into Head.
func (m *Message) ProtoReflect() protoreflect.Message {
	head := m.Head.ProtoReflect()
	if m.Extra != nil {
		head.SetUnknown(append(head.GetUnknown(), m.Extra...)) // they are encoded as they are
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

// marshal returns the encoding and hands over the references to the buffers of the large field.
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

// unmarshal reads an encoding: the large field becomes views of its buffers, the rest is copied and read into Head.
func (m *Message) unmarshal(encoded mem.BufferSlice) error {
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
			m.SetData(data) // of a field that is there twice the last one counts
			continue
		}
		rest = protowire.AppendVarint(rest, tag)
		if rest, err = c.appendValue(rest, kind); err != nil {
			return err
		}
	}
	return proto.Unmarshal(rest, m.Head)
}

// headBytes is room for what messages have beside their large field, as a rule.
const headBytes = 128

// Stream is the half of a grpc stream that sends.
type Stream interface {
	// SendMsg sends a message.
	SendMsg(m any) error
}

// Send sends m and takes its large field, also where that fails. The buffers are freed when the transport has written
// them, which may be long after Send has returned: until then nobody may write to their bytes.
func Send(s Stream, m *Message) error {
	defer m.Free() // what did not get as far as the codec
	return s.SendMsg(m)
}
