package message

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestManifestRoundTrip(t *testing.T) {
	t.Parallel()
	digest := make([]byte, digestBytes)
	for name, tensors := range map[string][]Tensor{
		"none":          {},
		"scalar":        {{Name: "s", DType: 1, Shape: []int64{}}},
		"empty name":    {{Name: "", DType: 1, Shape: []int64{1}}},
		"empty tensor":  {{Name: "e", DType: 1, Shape: []int64{0, 5}}},
		"strided":       {{Name: "a", DType: 1, Shape: []int64{2, 3}}, {Name: "b", DType: 1, Shape: []int64{2, 3}, Strides: []int64{1, 2}}},
		"strided first": {{Name: "b", DType: 1, Shape: []int64{2}, Strides: []int64{0}}, {Name: "a", DType: 1, Shape: []int64{2, 3}}},
		"digests":       {{Name: "ä", DType: 1, Shape: []int64{}, Digest: digest}, {Name: "日本", DType: 255, Storage: 1, ByteOffset: math.MaxInt64, Shape: []int64{math.MaxInt64}, Digest: digest}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := NewManifest(tensors, sampleStorages(), map[string]string{"k": "v"})
			require.NoError(t, err)
			require.Equal(t, len(tensors), m.Len())
			body, err := Marshal(m)
			require.NoError(t, err)
			var back Manifest
			require.NoError(t, Unmarshal(body, &back))
			got, err := back.Decode()
			require.NoError(t, err)
			require.Equal(t, tensors, got)
			require.Equal(t, m.Storages, back.Storages)
			require.Equal(t, m.Metadata, back.Metadata)
		})
	}
}

func TestNewManifestRefuses(t *testing.T) {
	t.Parallel()
	ok := Tensor{Name: "a", DType: 1, Shape: []int64{2}}
	for name, change := range map[string]func(*Tensor){
		"no data type":       func(t *Tensor) { t.DType = 0 },
		"negative dimension": func(t *Tensor) { t.Shape = []int64{-1} },
		"overflow":           func(t *Tensor) { t.Shape = []int64{1 << 32, 1 << 31} },
		"overflow beside 0":  func(t *Tensor) { t.Shape = []int64{0, 1 << 62, 4} },
		"storage":            func(t *Tensor) { t.Storage = 2 },
		"offset":             func(t *Tensor) { t.ByteOffset = -1 },
		"strides":            func(t *Tensor) { t.Strides = []int64{1, 1} },
		"digest":             func(t *Tensor) { t.Digest = []byte{1} },
		"rank":               func(t *Tensor) { t.Shape = make([]int64, MaxRank+1) },
		"name":               func(t *Tensor) { t.Name = "\xff" },
	} {
		tensor := ok
		change(&tensor)
		_, err := NewManifest([]Tensor{ok, tensor}, sampleStorages(), nil)
		require.ErrorIs(t, err, ErrManifest, name)
	}
	_, err := NewManifest([]Tensor{ok, {Name: "b", DType: 1, Digest: make([]byte, digestBytes)}}, sampleStorages(), nil)
	require.ErrorIs(t, err, ErrManifest, "one digest of two")
	_, err = NewManifest([]Tensor{ok}, []Storage{{Bytes: 1 << 63}}, nil)
	require.ErrorIs(t, err, ErrManifest, "storage size")
	_, err = NewManifest([]Tensor{ok}, sampleStorages(), map[string]string{"a": "\xff"})
	require.ErrorIs(t, err, ErrManifest, "metadata")
}

func TestHostileManifests(t *testing.T) {
	t.Parallel()
	put32 := func(b []byte, i int, v uint32) { binary.LittleEndian.PutUint32(b[4*i:], v) }
	put64 := func(b []byte, i int, v int64) { binary.LittleEndian.PutUint64(b[8*i:], uint64(v)) }
	for name, change := range map[string]func(*Manifest){
		"names cut":                func(m *Manifest) { m.Names = m.Names[:len(m.Names)-1] },
		"names long":               func(m *Manifest) { m.Names += "x" },
		"name lengths odd":         func(m *Manifest) { m.NameLengths = m.NameLengths[:5] },
		"name lengths short":       func(m *Manifest) { m.NameLengths = m.NameLengths[:4] },
		"name length huge":         func(m *Manifest) { put32(m.NameLengths, 0, math.MaxUint32) },
		"name lengths wrap":        func(m *Manifest) { put32(m.NameLengths, 0, math.MaxUint32); put32(m.NameLengths, 1, 2) },
		"name cut in a character":  func(m *Manifest) { put32(m.NameLengths, 1, 17); put32(m.NameLengths, 2, 4) },
		"data types":               func(m *Manifest) { m.DTypes = m.DTypes[:2] },
		"data type zero":           func(m *Manifest) { m.DTypes[1] = 0 },
		"ranks":                    func(m *Manifest) { m.Ranks = append(m.Ranks, 0) },
		"no ranks":                 func(m *Manifest) { m.Ranks = nil },
		"rank huge":                func(m *Manifest) { m.Ranks[0] = 255 },
		"rank over the limit":      func(m *Manifest) { m.Ranks[0] = 65; m.Dims = make([]byte, 8*(65+2)) },
		"dimensions":               func(m *Manifest) { m.Dims = m.Dims[8:] },
		"dimensions odd":           func(m *Manifest) { m.Dims = m.Dims[1:] },
		"dimension negative":       func(m *Manifest) { put64(m.Dims, 0, -1) },
		"dimensions overflow":      func(m *Manifest) { put64(m.Dims, 0, math.MaxInt64) },
		"storage indices":          func(m *Manifest) { m.Storage = m.Storage[1:] },
		"storage out of range":     func(m *Manifest) { put32(m.Storage, 2, 2) },
		"storage huge":             func(m *Manifest) { put32(m.Storage, 2, math.MaxUint32) },
		"no storages":              func(m *Manifest) { m.Storages = nil },
		"storage size":             func(m *Manifest) { m.Storages[0].Bytes = 1 << 63 },
		"offsets":                  func(m *Manifest) { m.Offsets = m.Offsets[8:] },
		"offset negative":          func(m *Manifest) { put64(m.Offsets, 1, math.MinInt64) },
		"strided odd":              func(m *Manifest) { m.Strided = m.Strided[:3] },
		"strided out of range":     func(m *Manifest) { put32(m.Strided, 0, 3) },
		"strided huge":             func(m *Manifest) { put32(m.Strided, 0, math.MaxUint32) },
		"strided twice":            func(m *Manifest) { m.Strided = append(m.Strided, m.Strided...) },
		"strided without strides":  func(m *Manifest) { m.Strides = nil },
		"strides without strided":  func(m *Manifest) { m.Strided = nil },
		"strides long":             func(m *Manifest) { m.Strides = append(m.Strides, 0) },
		"digests":                  func(m *Manifest) { m.Digests = m.Digests[1:] },
		"digests of fewer":         func(m *Manifest) { m.Digests = m.Digests[:digestBytes] },
		"too many tensors":         func(m *Manifest) { m.NameLengths = make([]byte, 4*(MaxTensors+1)) },
		"everything but the names": func(m *Manifest) { *m = Manifest{Names: "a", NameLengths: []byte{1, 0, 0, 0}} },
	} {
		t.Run(name, func(t *testing.T) {
			m := sampleManifest()
			body, err := Marshal(&m)
			require.NoError(t, err)
			m = Manifest{} // separate columns, because changes append to them
			require.NoError(t, Unmarshal(body, &m))
			_, err = m.Decode()
			require.NoError(t, err)
			change(&m)
			_, err = m.Decode()
			require.ErrorIs(t, err, ErrManifest)
		})
	}
}

// A small body that announces large columns costs little memory.
func TestManifestAnnouncesMuch(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for key := byte(1); key <= 12; key++ {
		for _, major := range []byte{0x5a, 0x7a, 0x9a, 0xba} {
			data := []byte{0xa1, key, major, 0x3b, 0x9a, 0xca, 0x00}
			require.ErrorIs(t, Unmarshal(data, new(Manifest)), ErrEncoding, "key %d", key)
		}
	}
	m := Manifest{NameLengths: make([]byte, 4), DTypes: []byte{1}, Ranks: []byte{255}, Storage: make([]byte, 4), Offsets: make([]byte, 8)}
	_, err := m.Decode()
	require.ErrorIs(t, err, ErrManifest)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

func FuzzManifest(f *testing.F) {
	m := sampleManifest()
	body, err := Marshal(&m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	for _, n := range []int{0, 1, 3} {
		small, err := NewManifest(sampleTensors(n), sampleStorages(), nil)
		if err != nil {
			f.Fatal(err)
		}
		body, _ := Marshal(small)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m Manifest
		if Unmarshal(data, &m) != nil {
			return
		}
		tensors, err := m.Decode()
		if err != nil {
			require.ErrorIs(t, err, ErrManifest)
			return
		}
		again, err := NewManifest(tensors, m.Storages, m.Metadata)
		require.NoError(t, err)
		want, err := Marshal(&m)
		require.NoError(t, err)
		got, err := Marshal(again)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

// sampleTensors returns n tensors like those of a transformer.
func sampleTensors(n int) []Tensor {
	tensors := make([]Tensor, n)
	offset := int64(0)
	for i := range tensors {
		tensors[i] = Tensor{
			Name:  fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", i),
			DType: 11, Storage: uint32(i % 2), ByteOffset: offset, Shape: []int64{4096, 1024},
		}
		offset += 4096 * 1024 * 2
	}
	return tensors
}

func sampleStorages() []Storage {
	return []Storage{{Bytes: 1 << 40, Device: UUID{1}, Type: 1}, {Bytes: 1 << 40, Device: UUID{2}, Type: 2}}
}

// A client without support for loading reads the published names as before.
func TestLoadingIsIgnoredByOldClients(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("../testdata/listed-loading.cbor")
	require.NoError(t, err)
	var old struct {
		Models []ModelInfo `cbor:"1,keyasint"`
	}
	require.NoError(t, Unmarshal(body, &old))
	require.Empty(t, old.Models)
	require.Equal(t, "loading", LoadState(77).String(), "of a state to come")
}
