package bulk

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec returns the codec: that of grpc-go under its name "proto", with a way of its own for a *Message and for *Parts.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

// ServerOptions returns the option that makes a server use the codec, for all of its services.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(Codec())}
}

// DialOptions returns the option that makes a connection use the codec, for all of its calls.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec()))}
}

// apart is a message of which something lies apart: *Message and *Parts.
type apart interface {
	// marshal returns the encoding and hands over the references to what lies apart.
	marshal() (mem.BufferSlice, error)
	// unmarshal reads an encoding, which it borrows. After an error the message has to be freed.
	unmarshal(encoded mem.BufferSlice) error
	// Free gives the buffers back.
	Free()
}

type codec struct {
	encoding.CodecV2 // for all other messages
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
