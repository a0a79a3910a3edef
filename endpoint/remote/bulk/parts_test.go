package bulk_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
)

// Repeated bytes are encoded and decoded as by grpc-go's codec, in both directions.
func TestPartsAreOrdinaryProtobuf(t *testing.T) {
	ours, theirs := bulk.Codec(), encoding.GetCodecV2("proto")
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 5 {
		for _, size := range []int{0, 1, 100, 3000} {
			want := &pb.ModelInferResponse{ModelName: "m", Id: "7"}
			for i := range n {
				want.RawOutputContents = append(want.RawOutputContents, bytes.Repeat([]byte{byte(i)}, size*i))
			}
			parts := func() *bulk.Parts {
				p := &bulk.Parts{Head: &pb.ModelInferResponse{ModelName: "m", Id: "7"}, Field: 6}
				for _, data := range want.GetRawOutputContents() {
					p.Append(pieces(r, data))
				}
				return p
			}
			encoded, err := ours.Marshal(parts())
			require.NoError(t, err)
			got := new(pb.ModelInferResponse)
			require.NoError(t, proto.Unmarshal(encoded.Materialize(), got))
			require.True(t, proto.Equal(want, got))
			require.True(t, proto.Equal(want, parts().ProtoReflect().Interface()), "without the codec")

			outer := parts()
			outer.Outer = 2
			encoded, err = ours.Marshal(outer)
			require.NoError(t, err)
			streamed := new(pb.ModelStreamInferResponse)
			require.NoError(t, proto.Unmarshal(encoded.Materialize(), streamed))
			require.True(t, proto.Equal(want, streamed.GetInferResponse()))

			encoded, err = theirs.Marshal(want)
			require.NoError(t, err)
			for _, codec := range []encoding.CodecV2{ours, theirs} {
				back := &bulk.Parts{Head: new(pb.ModelInferResponse), Field: 6}
				whole := encoded.Materialize()
				require.NoError(t, codec.Unmarshal(pieces(r, whole), back))
				taken := back.List()
				require.Len(t, taken, n)
				for i, part := range taken {
					require.True(t, bytes.Equal(want.GetRawOutputContents()[i], part.Materialize()))
				}
				require.True(t, proto.Equal(&pb.ModelInferResponse{ModelName: "m", Id: "7"}, back.Head))
			}
		}
	}
}

// Encodings that end early, or with a part longer than the rest of the message, are refused.
func TestInvalidPartsAreRefused(t *testing.T) {
	whole, err := proto.Marshal(&pb.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{make([]byte, 300), {1}}})
	require.NoError(t, err)
	for n := range whole {
		p := &bulk.Parts{Head: new(pb.ModelInferRequest), Field: 7}
		if err := bulk.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(whole[:n])}, p); err != nil {
			require.Empty(t, p.List())
		}
	}
	p := &bulk.Parts{Head: new(pb.ModelInferRequest), Field: 7}
	require.Error(t, bulk.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer{0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}}, p))
	require.Error(t, bulk.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{0x3a, 0}, 1<<17))}, p), "too many parts")
}
