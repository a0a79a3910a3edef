package modelwire_test

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// deltaSegment is the length of a segment.
const deltaSegment = 4 << 20

// encode returns the delta from base to next, beginning with a segment.
func encode(t testing.TB, base, next []byte, size int, from int64) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, modelwire.WriteDelta(&out, int64(len(next)), size, from, func(begin, end int64) (old, now []byte, err error) {
		return base[begin:end], next[begin:end], nil
	}))
	return out.Bytes()
}

// random returns n bytes that do not compress.
func random(n int, seed uint64) []byte {
	source := rand.New(rand.NewPCG(seed, 1))
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(source.Uint32())
	}
	return out
}

// changed returns a copy of data in which one of every so many elements is different.
func changed(data []byte, size, every int) []byte {
	out := bytes.Clone(data)
	source := rand.New(rand.NewPCG(7, 7))
	for range len(data) / size / every {
		out[source.IntN(len(data)/size)*size] ^= byte(1 + source.IntN(255))
	}
	return out
}

func TestDelta(t *testing.T) {
	const n = 2*deltaSegment + 1<<20 + 6
	base := random(n, 1)
	block := bytes.Clone(base)
	copy(block[5000:], random(n/100, 2))
	for name, c := range map[string]struct {
		next []byte
		size int
		most float64 // maximum fraction of the bytes
	}{
		"nothing":              {base, 2, 0.0001},
		"1 % of bfloat16":      {changed(base, 2, 100), 2, 0.02},
		"1 % of float32":       {changed(base, 4, 100), 4, 0.015},
		"1 % in one place":     {block, 2, 0.011},
		"half the elements":    {changed(base, 2, 2), 2, 1.0001},
		"all":                  {random(n, 3), 2, 1.0001},
		"all, to zeros":        {make([]byte, n), 2, 0.001},
		"packed":               {changed(base, 1, 1000), 1, 0.01},
		"partial last element": {append(bytes.Clone(base[:n-1]), ^base[n-1]), 8, 0.0001},
		"8-byte elements":      {changed(base, 8, 200), 8, 0.02},
	} {
		t.Run(name, func(t *testing.T) {
			text := encode(t, base, c.next, c.size, 0)
			require.LessOrEqual(t, float64(len(text))/n, c.most)
			got := bytes.Clone(base)
			r := bufio.NewReader(bytes.NewReader(append(bytes.Clone(text), "more"...)))
			done, err := modelwire.ApplyDelta(got, c.size, 0, r)
			require.NoError(t, err)
			require.Equal(t, int64(3), done)
			require.True(t, bytes.Equal(c.next, got))
			rest, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, "more", string(rest), "bytes after the delta are not consumed")

			// If the delta is cut anywhere, it continues at the segment that ApplyDelta returned.
			got = bytes.Clone(base)
			at, err := modelwire.ApplyDelta(got, c.size, 0, bufio.NewReader(bytes.NewReader(text[:len(text)/2])))
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			tail := encode(t, base, c.next, c.size, at)
			_, err = modelwire.ApplyDelta(got, c.size, at, bufio.NewReader(bytes.NewReader(tail)))
			require.NoError(t, err)
			require.True(t, bytes.Equal(c.next, got))
		})
	}
}

func TestApplyDeltaInvalid(t *testing.T) {
	for name, text := range map[string][]byte{
		"empty":                   nil,
		"unknown kind":            {9, 1, 0},
		"payload too long":        {3, 0xff, 0x7f},
		"endless length":          {3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"whole too short":         {3, 2, 1, 2},
		"position out of range":   {1, 3, 33, 1, 2},
		"position just too large": {1, 3, 32, 1, 2},
		"truncated value":         {1, 2, 0, 1},
		"huge position":           {1, 11, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1},
		"truncated block":         {2, 3, 0, 1, 2},
		"invalid zstd":            {0x81, 2, 1, 2},
		"compressed same":         {0x80, 0},
	} {
		t.Run(name, func(t *testing.T) {
			data := make([]byte, 64)
			_, err := modelwire.ApplyDelta(data, 2, 0, bufio.NewReader(bytes.NewReader(text)))
			require.Error(t, err)
		})
	}
}

// No input makes ApplyDelta write outside data or panic, and an encoded delta is always applied.
func FuzzApplyDelta(f *testing.F) {
	base := random(3000, 5)
	f.Add(encode(f, base, changed(base, 2, 10), 2, 0))
	f.Add(encode(f, base, random(3000, 6), 2, 0))
	f.Add([]byte{0x82, 5, 1, 2, 3, 4, 5})
	f.Fuzz(func(t *testing.T, text []byte) {
		memory := random(4000, 8)
		behind := bytes.Clone(memory[3000:])
		_, _ = modelwire.ApplyDelta(memory[:3000:3000], 2, 0, bufio.NewReader(bytes.NewReader(text)))
		require.Equal(t, behind, memory[3000:])
	})
}
