package modelwire_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
)

// file returns a model with about n bytes as a file, and its digest.
func file(t *testing.T, dev *host.Device, n int64) ([]byte, module.Digest) {
	t.Helper()
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 5, Bytes: n, Seed: 1})
	require.NoError(t, err)
	defer sd.Close()
	first, _ := sd.Get(sd.Names()[0])
	require.NoError(t, sd.Set("tied", first.Alias()))
	data, err := module.Encode(t.Context(), sd, module.SaveOptions{Metadata: map[string]string{"format": "pt"}})
	require.NoError(t, err)
	digest, err := module.StateDictDigest(t.Context(), sd, 0)
	require.NoError(t, err)
	return data, digest
}

// A file is received with its ties and metadata, in pieces of any length, and without holding it in Go's memory.
func TestReadFile(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole":         func(r io.Reader) io.Reader { return r },
		"halves":        iotest.HalfReader,
		"data with EOF": iotest.DataErrReader,
	} {
		t.Run(name, func(t *testing.T) {
			const n = 32 << 20
			data, digest := file(t, dev, n)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			sd, err := modelwire.ReadFile(t.Context(), dev, wrap(bytes.NewReader(data)), modelwire.FileLimits{Size: int64(len(data)), Header: 1 << 20})
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
			defer sd.Close()
			require.NoError(t, module.Verify(t.Context(), sd, digest))
			require.Equal(t, "pt", sd.Metadata["format"])
			require.Len(t, sd.Aliases(), 1)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(n/8))
		})
	}
}

// Every truncated file is refused with ErrFile and the cause, and its memory is released.
func TestReadFileTruncated(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close(), "no memory is left") }()
	data, _ := file(t, dev, 4<<10)
	for n := 0; n < len(data); n += 97 {
		_, err := modelwire.ReadFile(t.Context(), dev, bytes.NewReader(data[:n]), modelwire.FileLimits{Size: int64(len(data)), Header: 1 << 20})
		require.ErrorIs(t, err, modelwire.ErrFile)
		broken := errors.New("connection lost")
		_, err = modelwire.ReadFile(t.Context(), dev, io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(broken)), modelwire.FileLimits{Size: int64(len(data)), Header: 1 << 20})
		require.ErrorIs(t, err, broken)
	}
	_, err = modelwire.ReadFile(t.Context(), dev, bytes.NewReader(data), modelwire.FileLimits{Size: int64(len(data)), Header: 8})
	require.ErrorIs(t, err, modelwire.ErrFile, "the header is over the limit")
	_, err = modelwire.ReadFile(t.Context(), dev, bytes.NewReader(data), modelwire.FileLimits{Size: int64(len(data)) + 1, Header: 1 << 20})
	require.ErrorIs(t, err, modelwire.ErrFile, "the size differs from that of the header")
}
