package torchsave_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchsave"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// repickle returns the file of a tensor with another pickle.
func repickle(t *testing.T, x *tensor.Tensor, code string) []byte {
	t.Helper()
	encoded, err := torchsave.Encode(x)
	require.NoError(t, err)
	var old, changed bytes.Buffer
	_, err = encoded.WriteTo(&old)
	require.NoError(t, err)
	archive, err := zip.NewReader(bytes.NewReader(old.Bytes()), int64(old.Len()))
	require.NoError(t, err)
	w := zip.NewWriter(&changed)
	for _, entry := range archive.File {
		r, err := entry.Open()
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		if entry.Name == "archive/data.pkl" {
			data = []byte(code)
		}
		store(t, w, entry.Name, data)
	}
	require.NoError(t, w.Close())
	return changed.Bytes()
}

// manyEntries returns an archive with n empty entries.
func manyEntries(t *testing.T, n int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for i := range n {
		store(t, w, fmt.Sprintf("archive/data/%d", i), nil)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

func store(t *testing.T, w *zip.Writer, name string, data []byte) {
	t.Helper()
	f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
	require.NoError(t, err)
	_, err = f.Write(data)
	require.NoError(t, err)
}
