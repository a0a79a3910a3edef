package bulk

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
)

// Messages that are inflated at once share a limit, and each releases its share when it ends.
func TestInflatingIsBounded(t *testing.T) {
	for _, name := range []string{"gzip", "deflate"} {
		compressor := encoding.GetCompressor(name)
		var packed bytes.Buffer
		w, err := compressor.Compress(&packed)
		require.NoError(t, err)
		_, err = w.Write(make([]byte, 1<<20))
		require.NoError(t, err)
		require.NoError(t, w.Close())

		open := func() io.Reader {
			r, err := compressor.Decompress(bytes.NewReader(packed.Bytes()))
			require.NoError(t, err)
			return r
		}
		text, err := io.ReadAll(open())
		require.NoError(t, err)
		require.Len(t, text, 1<<20)

		before := inflating.Load()
		inflating.Add(maxInflating)
		_, err = io.ReadAll(open())
		require.ErrorIs(t, err, errInflating)
		inflating.Add(-maxInflating)
		require.Equal(t, before, inflating.Load())
	}
}
