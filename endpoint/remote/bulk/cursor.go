package bulk

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// cursor reads an encoding that is split over several buffers. It borrows them.
type cursor struct {
	buffers mem.BufferSlice
	at      int // position in the first buffer
	left    int // bytes after the position, in all buffers
}

// skip removes buffers that have been read completely.
func (c *cursor) skip() {
	for len(c.buffers) > 0 && c.at == c.buffers[0].Len() {
		c.buffers, c.at = c.buffers[1:], 0
	}
}

func (c *cursor) varint() (uint64, error) {
	var v uint64
	for shift := uint(0); shift < 70 && c.left > 0; shift += 7 {
		c.skip()
		b := c.buffers[0].ReadOnlyData()[c.at]
		c.at++
		c.left--
		if shift == 63 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, errMessage
}

// length reads the length of a bytes field. It fails if the length exceeds the remaining bytes.
func (c *cursor) length() (int, error) {
	n, err := c.varint()
	if err != nil || n > uint64(c.left) {
		return 0, errMessage
	}
	return int(n), nil
}

// view returns the next bytes field as views of the buffers. The caller owns a reference to each.
func (c *cursor) view() (mem.BufferSlice, error) {
	n, err := c.length()
	if err != nil {
		return nil, err
	}
	views := mem.BufferSlice{} // not nil: the field is present, but empty
	c.left -= n
	for n > 0 {
		c.skip()
		take := min(n, c.buffers[0].Len()-c.at)
		views = append(views, c.buffers[0].Slice(c.at, c.at+take))
		c.at += take
		n -= take
	}
	return views, nil
}

// append appends the next n bytes to dst. At least n bytes must remain.
func (c *cursor) append(dst []byte, n int) []byte {
	c.left -= n
	for n > 0 {
		c.skip()
		piece := c.buffers[0].ReadOnlyData()[c.at:]
		piece = piece[:min(n, len(piece))]
		dst = append(dst, piece...)
		c.at += len(piece)
		n -= len(piece)
	}
	return dst
}

// discard skips the next n bytes. At least n bytes must remain.
func (c *cursor) discard(n int) {
	c.left -= n
	for n > 0 {
		c.skip()
		step := min(n, c.buffers[0].Len()-c.at)
		c.at += step
		n -= step
	}
}

// appendValue appends the encoded value of a field to dst. It refuses groups, which proto3 does not have.
func (c *cursor) appendValue(dst []byte, kind protowire.Type) ([]byte, error) {
	n := 0
	switch kind {
	case protowire.VarintType:
		v, err := c.varint()
		return protowire.AppendVarint(dst, v), err
	case protowire.Fixed32Type:
		n = 4
	case protowire.Fixed64Type:
		n = 8
	case protowire.BytesType:
		var err error
		if n, err = c.length(); err != nil {
			return nil, err
		}
		dst = protowire.AppendVarint(dst, uint64(n))
	default:
		return nil, errMessage
	}
	if n > c.left {
		return nil, errMessage
	}
	return c.append(dst, n), nil
}
