package bulk

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	pb "google.golang.org/protobuf/types/known/sourcecontextpb"
)

// A refused name ends the decoding: what follows is not parsed, except for the field that is kept.
func TestNamesAreCheckedFirst(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	field := func(number protowire.Number, text string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), text)
	}
	for _, c := range []struct {
		name    string
		encoded [][]byte
		err     error
	}{
		{"no name", [][]byte{field(7, "part")}, nil},
		{"allowed", [][]byte{field(1, "mine"), field(7, "part")}, nil},
		{"refused", [][]byte{field(1, "other"), field(7, "part")}, refused},
		{"refused, then garbage", [][]byte{field(1, "other"), {0xff, 0xff}}, refused},
		{"refused behind an allowed one", [][]byte{field(1, "mine"), field(1, "other"), {0xff}}, refused},
		{"refused behind a part", [][]byte{field(7, "part"), field(1, "other"), {0x0a, 0x7f}}, refused},
	} {
		var buffers mem.BufferSlice
		for _, one := range c.encoded {
			buffers = append(buffers, mem.SliceBuffer(one))
		}
		name := &Name{Field: 1, Check: func(name string) error {
			if name == "other" {
				return refused
			}
			return nil
		}}
		parts := &Parts{Head: &pb.SourceContext{}, Field: 7, Name: name}
		require.NoError(t, parts.unmarshal(buffers, nil), c.name)
		require.Equal(t, c.err, name.Err(), c.name)
		require.Equal(t, c.err != nil, len(parts.List()) == 0, c.name)

		*name = Name{Field: 1, Check: name.Check}
		message := &Message{Head: &pb.SourceContext{}, Field: 7, Name: name}
		require.NoError(t, message.unmarshal(buffers, nil), c.name)
		require.Equal(t, c.err, name.Err(), c.name)
	}
	name := &Name{Field: 7, Keep: 1, Check: func(string) error { return refused }}
	message := &Message{Head: &pb.SourceContext{}, Field: 9, Name: name}
	id := field(1, "id")
	for _, encoded := range [][]byte{slices.Concat(field(7, "n"), field(5, "x"), id), slices.Concat(id, field(7, "n"))} {
		require.NoError(t, message.unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, nil))
		require.ErrorIs(t, name.Err(), refused)
		require.Equal(t, "id", message.Head.(*pb.SourceContext).FileName)
	}
	charged := int64(0)
	receive := &Charged{Charge: func(n int64) error { charged += n; return nil }}
	long := slices.Concat(field(7, "n"), field(1, strings.Repeat("i", 1<<20)))
	require.NoError(t, message.unmarshal(mem.BufferSlice{mem.SliceBuffer(long)}, receive))
	require.Greater(t, charged, int64(1<<20), "the kept field is charged")
	require.NoError(t, (*Name)(nil).Err())
}
