package modelwire_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// server holds the bytes of one tensor and serves ranges of it, with faults.
type server struct {
	data     []byte
	cut      int   // responses end after this many bytes; 0 for none
	cuts     int64 // the first responses that are cut; 0 for all
	ignores  bool  // ranges are ignored
	requests atomic.Int64
	damage   func(request int64, begin int64, p []byte) // changes a response
}

func (s *server) open(_ context.Context, begin, end int64) (io.ReadCloser, error) {
	n := s.requests.Add(1)
	if s.ignores && (begin > 0 || end < int64(len(s.data))) {
		return nil, modelwire.ErrNoRanges
	}
	p := bytes.Clone(s.data[begin:end])
	if s.damage != nil {
		s.damage(n, begin, p)
	}
	if s.cut > 0 && len(p) > s.cut && (s.cuts == 0 || n <= s.cuts) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(p[:s.cut]), failing{})), nil
	}
	return io.NopCloser(bytes.NewReader(p)), nil
}

var errCut = errors.New("connection lost")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errCut }

// retrying repeats attempts that fail with errCut.
func retrying(_ context.Context, attempt func() (bool, error)) error {
	var err error
	for range 30 {
		if _, err = attempt(); !errors.Is(err, errCut) {
			break
		}
	}
	return err
}

// manifestOf returns the manifest of one uint8 tensor with the digest of data.
func manifestOf(t testing.TB, h modelwire.Hash, data []byte) *modelwire.Manifest {
	t.Helper()
	m, err := modelwire.NewManifest([]module.NamedSpec{{Name: "w", DType: tensor.Uint8, Shape: tensor.Shape{int64(len(data))}}}, nil, modelwire.Limits{})
	require.NoError(t, err)
	m.Hash = h
	m.Tensors[0].TensorSums, err = modelwire.SumTensor(h, int64(len(data)), func(begin, end int64) ([]byte, error) { return data[begin:end], nil })
	require.NoError(t, err)
	return m
}

// fetch fetches the tensor of a server into new memory and returns its bytes.
func fetch(t *testing.T, h modelwire.Hash, s *server, untrusted func(error) bool) ([]byte, error) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	m := manifestOf(t, h, s.data)
	step := h.RangeBytes(1 << 20)
	a, err := modelwire.NewArrival(dev, m, step)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	d := &modelwire.Download{Name: "w", Parts: []*modelwire.Part{{Destination: a.Tensors[0], End: int64(len(s.data))}}, Open: s.open, Untrusted: untrusted}
	if h == modelwire.BLAKE3 {
		d.Chunks = m.Tensors[0].Chunks
	} else {
		d.SHA256 = m.Tensors[0].Sum
	}
	err = modelwire.Fetch(t.Context(), []*modelwire.Download{d}, modelwire.FetchOptions{Workers: 3, RangeBytes: 1 << 20, Again: retrying})
	if err == nil {
		require.EqualValues(t, len(s.data), a.Done.Load())
		n, _ := a.Tensors[0].Available(0)
		require.EqualValues(t, len(s.data), n)
	}
	return bytes.Clone(a.Tensors[0].Data()), err
}

// A tensor of several chunks is fetched and verified with both hash functions, over connections that break, and from
// servers that ignore ranges.
func TestFetch(t *testing.T) {
	t.Parallel()
	data := random(2*modelwire.ChunkBytes+12345, 1)
	for _, h := range []modelwire.Hash{modelwire.SHA256, modelwire.BLAKE3} {
		for name, s := range map[string]*server{"whole": {}, "cut": {cut: 700_001}, "ranges ignored": {ignores: true}, "ignored and cut": {ignores: true, cut: 5_000_000, cuts: 6}} {
			t.Run(fmt.Sprint(h, "/", name), func(t *testing.T) {
				t.Parallel()
				s.data = data
				got, err := fetch(t, h, s, nil)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got))
			})
		}
	}
}

// Wrong bytes are refused. Those of a source that is not trusted are fetched again: only the damaged chunk with BLAKE3.
func TestFetchWrongBytes(t *testing.T) {
	t.Parallel()
	data := random(2*modelwire.ChunkBytes+12345, 2)
	for _, h := range []modelwire.Hash{modelwire.SHA256, modelwire.BLAKE3} {
		t.Run(h.String(), func(t *testing.T) {
			t.Parallel()
			spoil := func(p []byte) { p[len(p)/2]++ }
			_, err := fetch(t, h, &server{data: data, damage: func(_, _ int64, p []byte) { spoil(p) }}, nil)
			require.ErrorIs(t, err, module.ErrDigest)
			_, err = fetch(t, h, &server{data: data, damage: func(_, _ int64, p []byte) { spoil(p) }}, func(error) bool { return true })
			require.ErrorIs(t, err, module.ErrDigest, "the other source is wrong too")

			var bad atomic.Bool
			s := &server{data: data}
			s.damage = func(_, begin int64, p []byte) {
				if begin == modelwire.ChunkBytes && bad.CompareAndSwap(false, true) {
					spoil(p)
				}
			}
			told := 0
			got, err := fetch(t, h, s, func(err error) bool { told++; return errors.Is(err, module.ErrDigest) })
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			require.Equal(t, 1, told)
			if h == modelwire.BLAKE3 {
				require.EqualValues(t, 4, s.requests.Load(), "three chunks, one of them twice")
			}
		})
	}
}

// A manifest survives its JSON with every kind of digest, and its SHA-256 is that of package module.
func TestManifestJSON(t *testing.T) {
	t.Parallel()
	data := random(modelwire.ChunkBytes+1, 3)
	for _, h := range []modelwire.Hash{modelwire.SHA256, modelwire.BLAKE3} {
		m := manifestOf(t, h, data)
		m.Name, m.Version, m.ServerID, m.Metadata = "org/m", 3, "server", map[string]string{"a": "b"}
		m.Tensors = append(m.Tensors, modelwire.Entry{NamedSpec: module.NamedSpec{Name: "tied", DType: tensor.Uint8, Shape: m.Tensors[0].Shape, TiedTo: "w"}})
		m.Tensors[1].Bytes = m.Bytes
		m.TieDigests()
		text, err := m.MarshalJSON()
		require.NoError(t, err)
		require.Contains(t, string(text), `"url":"/v1/models/org%2Fm@3/tensors/w"`)
		got, err := modelwire.ParseManifest(text, modelwire.Limits{})
		require.NoError(t, err)
		require.Equal(t, m, got)
		require.Equal(t, m.Digest(), got.Digest())
		require.Equal(t, m.Tensors[0].Digest, m.Tensors[1].Digest)
		parsed, err := modelwire.ParseDigest(m.Digest().String())
		require.NoError(t, err)
		require.Equal(t, m.Digest(), parsed)
		_, err = modelwire.ParseManifest(text, modelwire.Limits{Bytes: modelwire.ChunkBytes})
		require.ErrorIs(t, err, modelwire.ErrLimit)
	}
	require.Equal(t, modelwire.Sum(sha256.Sum256(data)), manifestOf(t, modelwire.SHA256, data).Tensors[0].Sum)
}

// BenchmarkHash compares the hash functions on one chunk, one thread.
//
//	go test -run '^$' -bench Hash -benchtime 100x -cpu 1 ./modelwire
func BenchmarkHash(b *testing.B) {
	data := random(modelwire.ChunkBytes, 1)
	for _, h := range []modelwire.Hash{modelwire.SHA256, modelwire.BLAKE3} {
		b.Run(h.String(), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			one := h.New()
			for b.Loop() {
				one.Reset()
				_, _ = one.Write(data)
				one.Sum(nil)
			}
		})
	}
}
