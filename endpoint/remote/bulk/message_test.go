package bulk_test

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
)

const dataField = 3

func chunk() *torchpb.TensorChunk {
	return &torchpb.TensorChunk{TensorId: "t", ChunkNumber: 7, TotalChunks: 300, IsLast: true, Metadata: map[string]string{"shape": "[2]"}}
}

// pieces splits data into buffers at random offsets.
func pieces(r *rand.Rand, data []byte) mem.BufferSlice {
	var s mem.BufferSlice
	for len(data) > 0 {
		n := min(len(data), 1+r.IntN(9))
		s = append(s, mem.SliceBuffer(data[:n]))
		data = data[n:]
	}
	return s
}

// Messages are encoded and decoded as by grpc-go's codec, in both directions.
func TestWireIsOrdinaryProtobuf(t *testing.T) {
	ours, theirs := bulk.Codec(), encoding.GetCodecV2("proto")
	r := rand.New(rand.NewPCG(1, 2))
	for size := range 300 {
		data := bytes.Repeat([]byte{byte(size)}, size)
		m := &bulk.Message{Head: chunk(), Field: dataField}
		if size > 0 {
			m.SetData(pieces(r, data))
		}
		encoded, err := ours.Marshal(m)
		require.NoError(t, err)
		want := chunk()
		want.Data = data
		got := new(torchpb.TensorChunk)
		require.NoError(t, proto.Unmarshal(encoded.Materialize(), got))
		require.True(t, proto.Equal(want, got))

		encoded, err = theirs.Marshal(want)
		require.NoError(t, err)
		back := &bulk.Message{Head: new(torchpb.TensorChunk), Field: dataField}
		require.NoError(t, ours.Unmarshal(pieces(r, encoded.Materialize()), back))
		require.True(t, proto.Equal(chunk(), back.Head))
		require.True(t, bytes.Equal(data, back.Data().Materialize()))
	}
}

// A message passes through a codec that does not support the package.
func TestOtherCodec(t *testing.T) {
	theirs := encoding.GetCodecV2("proto")
	m := &bulk.Message{Head: chunk(), Field: dataField}
	m.SetData(mem.BufferSlice{mem.SliceBuffer("ab"), mem.SliceBuffer("c")})
	encoded, err := theirs.Marshal(m)
	require.NoError(t, err)
	back := &bulk.Message{Head: new(torchpb.TensorChunk), Field: dataField}
	require.NoError(t, theirs.Unmarshal(encoded, back))
	require.Equal(t, "abc", string(back.Data().Materialize()))
	require.True(t, proto.Equal(chunk(), back.Head))
}

// A buffer is released once, after the transport and the receiver have freed it, also if it is too small for reference
// counts.
func TestBorrowIsReleasedOnce(t *testing.T) {
	for _, size := range []int{0, 1, 1024, 1025, 1 << 20} {
		released := 0
		b := bulk.Borrow(make([]byte, size), func() { released++ })
		a := b.Slice(0, size/2)
		c := b.Slice(size/2, size)
		b.Free()
		a.Free()
		c.Free()
		require.Equal(t, 1, released, "%d bytes", size)
	}
}

// A buffer that the transport drops without freeing it is released by the garbage collector.
func TestDroppedBuffersAreReleased(t *testing.T) {
	released := make(chan struct{})
	func() {
		b := bulk.Borrow(make([]byte, 1<<20), func() { close(released) })
		_ = b.Slice(0, 10)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-released:
			return true
		default:
			return false
		}
	}, 10*time.Second, time.Millisecond)
}

// If a message has the field twice, only the last value is kept, and freeing the message frees all buffers.
func TestReceivedBuffersAreFreed(t *testing.T) {
	head, err := proto.Marshal(&torchpb.TensorChunk{Data: bytes.Repeat([]byte{1}, 5000)})
	require.NoError(t, err)
	released := 0
	whole := bulk.Borrow(append(head, head...), func() { released++ })
	m := &bulk.Message{Head: new(torchpb.TensorChunk), Field: dataField}
	require.NoError(t, bulk.Codec().Unmarshal(mem.BufferSlice{whole}, m))
	whole.Free()
	require.Zero(t, released)
	require.Equal(t, 5000, m.Data().Len())
	require.Error(t, bulk.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(head[:100])}, m))
}

// The decoder and protobuf's decoder agree: both refuse an encoding, or both return the same message.
func FuzzUnmarshal(f *testing.F) {
	seed, err := proto.Marshal(&torchpb.TensorChunk{TensorId: "a", Data: []byte("data"), Metadata: map[string]string{"k": "v"}})
	require.NoError(f, err)
	f.Add(seed, uint64(1))
	f.Add([]byte{0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, uint64(2))
	f.Fuzz(func(t *testing.T, encoded []byte, cut uint64) {
		m := &bulk.Message{Head: new(torchpb.TensorChunk), Field: dataField}
		err := bulk.Codec().Unmarshal(pieces(rand.New(rand.NewPCG(cut, 1)), encoded), m)
		want := new(torchpb.TensorChunk)
		if wantErr := proto.Unmarshal(encoded, want); wantErr != nil {
			require.Error(t, err)
			return
		}
		if err != nil {
			return // protobuf keeps groups as unknown fields
		}
		require.True(t, bytes.Equal(want.Data, m.Data().Materialize()))
		want.Data = nil
		want.ProtoReflect().SetUnknown(nil) // unknown fields are kept, but with their numbers in the shortest form
		m.Head.ProtoReflect().SetUnknown(nil)
		require.True(t, proto.Equal(want, m.Head))
	})
}
