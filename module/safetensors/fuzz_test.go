package safetensors

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// ReadHeader returns an error, or a header that encodes to a file with the same header.
func FuzzReadHeader(f *testing.F) {
	f.Add(file(`{}`, 0))
	f.Add(file(`{"w":`+f32(1, 0, 4)+`,"\ud83d\ude00":`+f32(0, 4, 4)+`,"__metadata__":{"a":"\u0000"}}  `, 4))
	f.Add(file(`{"w":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}`, 3))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := ReadHeader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			require.Nil(t, h)
			return
		}
		text, err := h.Encode()
		require.NoError(t, err)
		again, err := ReadHeader(headerOnly{text}, int64(len(text))+h.DataBytes())
		require.NoError(t, err)
		require.Equal(t, h.Tensors, again.Tensors)
		require.Equal(t, h.Metadata, again.Metadata)
		require.Equal(t, h.DataBytes(), again.DataBytes())
		require.Zero(t, again.DataOffset%8)
	})
}

// ParseIndex returns an error, or an index whose entries name existing shards with plain names.
func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":8.0},"weight_map":{"b":"y.safetensors","a":"x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{},"other":[1,{"deep":[true,null,"x"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		index, err := ParseIndex(data)
		if err != nil {
			require.Nil(t, index)
			return
		}
		require.GreaterOrEqual(t, index.TotalSize, int64(-1))
		used := map[int]bool{}
		for i, entry := range index.Tensors {
			require.Less(t, entry.Shard, len(index.Shards))
			used[entry.Shard] = true
			if i > 0 {
				require.Less(t, index.Tensors[i-1].Name, entry.Name)
			}
		}
		require.Len(t, used, len(index.Shards))
		for _, shard := range index.Shards {
			require.True(t, plainName(shard), shard)
		}
	})
}
