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
	// unmarshal reads an encoding, which it borrows. The caller frees the message, also after an error.
	unmarshal(encoded mem.BufferSlice) error
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
	if m, ok := v.(apart); ok {
		if err := m.unmarshal(data); err != nil {
			m.Free()
			return fmt.Errorf("%T: %w", v, err)
		}
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
