package bulk_test

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
)

// expensive are encodings of requests whose messages take many times their memory.
func expensive(t *testing.T) map[string][]byte {
	t.Helper()
	const n = 64 << 10
	wrap := func(head []byte, inner []byte) []byte {
		out, err := proto.Marshal(&pb.ModelInferRequest{Inputs: []*pb.ModelInferRequest_InferInputTensor{{}}})
		require.NoError(t, err)
		out = out[:1] // the tag of inputs
		length := uint64(len(head) + len(inner))
		for ; length >= 0x80; length >>= 7 {
			out = append(out, byte(length)|0x80)
		}
		return append(append(append(out, byte(length)), head...), inner...)
	}
	contents := &pb.InferTensorContents{Int64Contents: make([]int64, n), BytesContents: make([][]byte, n), IntContents: make([]int32, n)}
	message, err := proto.Marshal(&pb.ModelInferRequest{Inputs: []*pb.ModelInferRequest_InferInputTensor{{Contents: contents, Shape: make([]int64, n)}}})
	require.NoError(t, err)
	return map[string][]byte{
		"inputs":     bytes.Repeat([]byte{0x2a, 0}, n),
		"outputs":    bytes.Repeat([]byte{0x32, 0}, n),
		"parts":      bytes.Repeat([]byte{0x3a, 0}, n),
		"parameters": bytes.Repeat([]byte{0x22, 0}, n),
		"nested":     wrap(nil, bytes.Repeat([]byte{0x22, 0}, n)),
		"numbers":    message,
		"unknown":    bytes.Repeat([]byte{0x78, 0}, n),
	}
}

// A message is charged at least half of the memory that it takes, before it is decoded.
func TestDecodedMemoryIsCharged(t *testing.T) {
	for name, encoded := range expensive(t) {
		for kind, make := range map[string]func() any{
			"message": func() any { return new(pb.ModelInferRequest) },
			"parts":   func() any { return &bulk.Parts{Head: new(pb.ModelInferRequest), Field: 7} },
		} {
			t.Run(name+" as "+kind, func(t *testing.T) {
				charged := int64(0)
				m := &bulk.Charged{Message: make(), Charge: func(n int64) error { charged += n; return nil }}
				data := mem.BufferSlice{mem.SliceBuffer(encoded)}
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				require.NoError(t, bulk.Codec().Unmarshal(data, m))
				runtime.GC()
				runtime.ReadMemStats(&after)
				taken := int64(after.HeapAlloc) - int64(before.HeapAlloc)
				t.Logf("%d bytes take %d, %d are charged", len(encoded), taken, charged)
				require.LessOrEqual(t, taken, 2*(charged+int64(len(encoded)))+64<<10)
				runtime.KeepAlive(m)

				refused := errors.New("refused")
				m = &bulk.Charged{Message: make(), Charge: func(int64) error { return refused }}
				require.ErrorIs(t, bulk.Codec().Unmarshal(data, m), refused)
				head, ok := m.Message.(*pb.ModelInferRequest)
				if !ok {
					head = m.Message.(*bulk.Parts).Head.(*pb.ModelInferRequest)
				}
				require.Empty(t, head.GetInputs(), "decoded before it was charged")
			})
		}
	}
}

// The charge of a message that a handler frees late is released with its bytes, and once.
func TestMessagesOwnTheirCharge(t *testing.T) {
	parts := &bulk.Parts{Head: new(pb.ModelInferRequest), Field: 7}
	single := &bulk.Message{Head: new(torchpb.TensorChunk), Field: dataField}
	for m, bytes := range map[interface {
		Own(release func())
		Free()
	}]func() int{
		parts:  func() int { return len(parts.List()) },
		single: func() int { return single.Data().Len() },
	} {
		released := 0
		require.NoError(t, bulk.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer{0x3a, 1, 0, 0x1a, 1, 'i'}}, m))
		m.Own(func() { released++ })
		m.Own(func() { released += 10 })
		require.Equal(t, 1, bytes())
		require.Zero(t, released)
		m.Free()
		m.Free()
		require.Equal(t, 11, released)
		require.Zero(t, bytes(), "after the charge was released")
	}
}
