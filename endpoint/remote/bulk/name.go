package bulk

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Name checks a text field of a message when it is read. The rest of a refused message is not decoded.
type Name struct {
	// Field is the number of the field.
	Field protowire.Number
	// Keep is a field that a refused message keeps, such as its id, before or after the name. 0 means none.
	Keep protowire.Number
	// Check returns an error if the message is refused. A field that occurs more than once is checked each time.
	Check func(name string) error

	err error
}

// Err returns the error of Check for the message that was received last. It is nil if n is nil.
func (n *Name) Err() error {
	if n == nil {
		return nil
	}
	return n.err
}

// refuses reports whether an encoded field is a name that is refused.
func (n *Name) refuses(number protowire.Number, field []byte) bool {
	if n == nil || number != n.Field {
		return false
	}
	_, kind, size := protowire.ConsumeTag(field)
	if kind != protowire.BytesType {
		return false
	}
	name, _ := protowire.ConsumeBytes(field[size:])
	n.err = n.Check(string(name))
	return n.err != nil
}

// kept returns the encoding of the field of a refused message that is kept.
func (n *Name) kept(encoded mem.BufferSlice) (field []byte) {
	c := cursor{buffers: encoded, left: encoded.Len()}
	for n.Keep != 0 && c.left > 0 {
		tag, err := c.varint()
		if err != nil {
			break
		}
		one := protowire.AppendVarint(nil, tag)
		number, kind := protowire.DecodeTag(tag)
		if number != n.Keep && kind == protowire.BytesType {
			length, err := c.length()
			if err != nil {
				break
			}
			c.discard(length)
			continue
		}
		if one, err = c.appendValue(one, kind); err != nil {
			break
		}
		if number == n.Keep {
			return one
		}
	}
	return nil
}
