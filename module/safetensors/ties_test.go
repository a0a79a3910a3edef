package safetensors

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// openWith writes tensors "a" and "b" with metadata and opens the file.
func openWith(t *testing.T, metadata map[string]string) (*Model, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.safetensors")
	one := tensor.Shape{1}
	h, err := NewHeader([]TensorInfo{{Name: "a", DType: tensor.Uint8, Shape: one}, {Name: "b", DType: tensor.Uint8, Shape: one}}, metadata)
	require.NoError(t, err)
	require.NoError(t, WriteFile(path, h, func(w io.Writer, _ TensorInfo) error { _, err := w.Write([]byte{1}); return err }))
	m, err := Open(path)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, m.Close()) })
	}
	return m, err
}

// Metadata whose values are names of tensors does not create tensors.
func TestOnlyTheRecordTies(t *testing.T) {
	t.Parallel()
	m, err := openWith(t, map[string]string{"format": "a", "head": "b", "sharedtensor.tied ": `{"x":"a"}`})
	require.NoError(t, err)
	require.Empty(t, m.Ties)
	_, found := m.Lookup("head")
	require.False(t, found)
	require.Equal(t, 2, m.TieByMetadata(), "what was asked for")
	require.Equal(t, []Tie{{"format", "a"}, {"head", "b"}}, m.Ties)
	require.Zero(t, m.TieByMetadata(), "a second time")

	ties := map[string]string{"z": "b", "y\"": "a", "x": "b"}
	m, err = openWith(t, map[string]string{"head": "b", TiedKey: EncodeTies(ties)})
	require.NoError(t, err)
	require.Equal(t, []Tie{{"x", "b"}, {"y\"", "a"}, {"z", "b"}}, m.Ties)
	x, found := m.Lookup("z")
	require.True(t, found)
	require.Equal(t, "b", x.Name)
}

func TestBadTiesAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "[]", "a", `{"x":1}`, `{"x":["a"]}`, `{"x":"a"`, `{"x":"a"} {}`, `{"x":"a","x":"b"}`, // not a record
		`{"x":"c"}`, `{"a":"b"}`, `{"a":"a"}`, `{"x":"y","y":"a"}`, // names that are not stored, or are
	} {
		_, err := openWith(t, map[string]string{TiedKey: text})
		require.ErrorIs(t, err, ErrTies, text)
	}
}
