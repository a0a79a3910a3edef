package message

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// A head followed by the shared tail equals the message of the general codec.
func TestAcquiredInParts(t *testing.T) {
	m, err := NewManifest([]Tensor{{Name: "w", DType: 12, Shape: []int64{3}}}, []Storage{{Bytes: 64, Type: 1}}, map[string]string{"a": "b"})
	require.NoError(t, err)
	handles := []Handle{{Kind: "memfd", Bytes: 64, File: 0, Name: "n"}}
	for i, lease := range []uint64{0, 23, 24, 255, 256, 1 << 20, math.MaxUint64} {
		source := []string{"", "größer.safetensors"}[i%2]
		tail, manifest, err := MarshalAcquiredTail(m, handles, source)
		require.NoError(t, err)
		want, err := Marshal(Acquired{Lease: lease, Name: "größer", Version: lease / 2, Manifest: *m, Handles: handles, Source: source})
		require.NoError(t, err)
		require.Equal(t, want, append(AppendAcquiredHead(nil, lease, "größer", lease/2, source != ""), tail...))
		got, err := UnmarshalAcquired(want)
		require.NoError(t, err)
		require.Equal(t, AcquiredHead{Lease: lease, Name: "größer", Version: lease / 2, Handles: handles, Manifest: EncodedItem(manifest), Source: source}, got)
	}
	_, manifest, err := MarshalAcquiredTail(m, handles, "")
	require.NoError(t, err)
	model := ModelInfo{Name: "m", Versions: []VersionInfo{{Version: 2}}}
	want, err := Marshal(InfoResult{Model: model, Manifest: m})
	require.NoError(t, err)
	head, err := MarshalInfoHead(&model)
	require.NoError(t, err)
	require.Equal(t, want, append(head, manifest...))
}
