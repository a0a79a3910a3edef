// Package bulk sends and receives protobuf messages with one large bytes field without copying that field.
//
// grpc-go's codec copies the field twice when it sends (into the message and into the encoding) and twice when it
// receives. A Message holds the large field as buffers outside the protobuf message. The codec writes the rest of the
// message and the field's tag and length, and passes the buffers to the transport unchanged. A receiver gets the field
// as the buffers that the transport has received. The wire format is ordinary protobuf, so generated clients in any
// language are compatible.
//
//	server := grpc.NewServer(bulk.ServerOptions()...)
//	conn, err := grpc.NewClient(target, append(bulk.DialOptions(), credentials)...)
//
// Parts does the same for a repeated bytes field. Both types also work on servers and connections without the codec,
// with the copies described above.
package bulk

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec returns the codec: grpc-go's codec under its name "proto", except that a *Message and *Parts are encoded
// without copying their large fields.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

// ServerOptions returns the option that installs the codec for all services of a server.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(Codec())}
}

// DialOptions returns the option that installs the codec for all calls of a connection.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec()))}
}

// apart is implemented by messages with data outside the protobuf message: *Message and *Parts.
type apart interface {
	// marshal returns the encoding and transfers the references to the data to it.
	marshal() (mem.BufferSlice, error)
	// unmarshal reads an encoding, which it borrows. charged may be nil. The caller frees the message, also after an
	// error.
	unmarshal(encoded mem.BufferSlice, charged *Charged) error
	// Free releases the buffers.
	Free()
}

type codec struct {
	encoding.CodecV2 // encodes all other messages
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(apart); ok {
		return m.marshal()
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	charged, _ := v.(*Charged)
	if charged != nil {
		v = charged.Message
	}
	if err := settled(data, charged); err != nil {
		return err
	}
	if m, ok := v.(apart); ok {
		if err := m.unmarshal(data, charged); err != nil {
			m.Free()
			return fmt.Errorf("%T: %w", v, err)
		}
		return nil
	}
	return c.unmarshal(data, v, charged)
}
