package bulk

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
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
		inflating.Add(maxInflating.Load())
		_, err = io.ReadAll(open())
		require.ErrorIs(t, err, errInflating)
		inflating.Add(-maxInflating.Load())
		require.Equal(t, before, inflating.Load())

		chargesInflated.Store(true)
		inflate := func() mem.BufferSlice {
			data, err := mem.ReadAll(open(), mem.DefaultBufferPool())
			require.NoError(t, err)
			require.Equal(t, before+1<<20, inflating.Load(), "until it is charged")
			return data
		}
		charged := int64(0)
		require.NoError(t, settled(inflate(), &Charged{Charge: func(n int64) error { charged += n; return nil }}))
		require.Equal(t, int64(1<<20), charged)
		require.Equal(t, before, inflating.Load())
		require.ErrorIs(t, settled(inflate(), &Charged{Charge: func(int64) error { return errMessage }}), errMessage)
		require.Equal(t, before, inflating.Load())
		inflate().Free() // over the limit of grpc-go
		for inflating.Load() != before {
			runtime.GC()
		}
		chargesInflated.Store(false)
	}
}
