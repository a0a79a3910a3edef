package admission_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// frames returns zstd frames of random sizes, windows and forms, their content and the largest window.
func frames(t *testing.T, r *rand.Rand) (packed, plain []byte, window uint64) {
	t.Helper()
	for range 1 + r.IntN(5) {
		content := bytes.Repeat([]byte{byte(r.Uint32()), 1, byte(r.Uint32())}, r.IntN(200_000))
		if r.IntN(2) == 0 {
			for i := range content {
				content[i] = byte(r.Uint32()) // blocks that are not compressed
			}
		}
		encoder, err := zstd.NewWriter(nil, zstd.WithWindowSize(1<<(10+r.IntN(13))), zstd.WithEncoderCRC(r.IntN(2) == 0),
			zstd.WithSingleSegment(r.IntN(2) == 0), zstd.WithEncoderPadding(1+r.IntN(2)*4095))
		require.NoError(t, err)
		var frame bytes.Buffer
		encoder.Reset(&frame)
		if r.IntN(2) == 0 {
			frame.Write(encoder.EncodeAll(content, nil))
		} else {
			_, err = encoder.Write(content)
			require.NoError(t, err)
			require.NoError(t, encoder.Close())
		}
		var header zstd.Header
		if frame.Len() > 0 {
			require.NoError(t, header.Decode(frame.Bytes()))
			if header.SingleSegment {
				header.WindowSize = header.FrameContentSize
			}
			window = max(window, header.WindowSize)
		}
		packed, plain = append(packed, frame.Bytes()...), append(plain, content...)
	}
	return packed, plain, window
}

// A decoder of zstd is charged for the largest window of its frames, also if headers arrive in pieces, and refused before it
// allocates a window over the budget.
func TestWindowsAreCharged(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	id := rights.Identity{Name: "a", Method: rights.MethodToken}
	for i := range 60 {
		packed, plain, window := frames(t, r)
		pool := admission.NewPool(admission.Limits{Bytes: 64 << 20})
		charge := pool.Open(id)
		before := pool.Used()
		source := io.Reader(bytes.NewReader(packed))
		if i%4 == 0 {
			source = iotest.OneByteReader(source)
		}
		d, err := charge.Decode(source, "zstd")
		require.NoError(t, err)
		decoder := pool.Used() - before
		require.Positive(t, decoder)
		got, err := io.ReadAll(d)
		require.NoError(t, err)
		require.True(t, bytes.Equal(plain, got))
		require.Equal(t, int64(window), pool.Used()-decoder, "%d", i)
		require.NoError(t, d.Close())
		charge.Close()
		require.Zero(t, pool.Used())

		if window < 1<<20 {
			continue
		}
		small := admission.NewPool(admission.Limits{Bytes: decoder + int64(window) - 1, Share: decoder + int64(window) - 1})
		charge = small.Open(id)
		d, err = charge.Decode(bytes.NewReader(packed), "zstd")
		require.NoError(t, err)
		_, err = io.ReadAll(d)
		require.ErrorIs(t, err, admission.ErrLimit)
		_ = d.Close()
		charge.Close()
	}
}

// Bytes that are not zstd reach the decoder, which refuses them.
func TestWindowsOfOtherBytes(t *testing.T) {
	pool := admission.NewPool(admission.Limits{Bytes: 64 << 20})
	for n := range 64 {
		charge := pool.Open(rights.Identity{Name: "a", Method: rights.MethodToken})
		d, err := charge.Decode(bytes.NewReader(bytes.Repeat([]byte{byte(n * 4)}, n+1)), "zstd")
		require.NoError(t, err)
		_, err = io.ReadAll(d)
		require.Error(t, err)
		_ = d.Close()
		charge.Close()
	}
}
