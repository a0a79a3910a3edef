package gguf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func read(t *testing.T, data []byte) *gguf.Header {
	t.Helper()
	h, err := gguf.ReadHeader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	return h
}

// quantised returns testdata/quantised.gguf, which testdata/make.py wrote with the gguf package.
func quantised(t *testing.T) ([]byte, *gguf.Header) {
	t.Helper()
	data, err := os.ReadFile("testdata/quantised.gguf")
	require.NoError(t, err)
	return data, read(t, data)
}

// A file of another implementation has the metadata and tensors that were written.
func TestReadHeader(t *testing.T) {
	t.Parallel()
	_, h := quantised(t)
	require.Equal(t, uint32(3), h.Version)
	require.Equal(t, int64(32), h.Alignment)
	for key, want := range map[string]any{
		"general.architecture": "llama", "llama.block_count": uint32(2), "general.name": "test model",
		"llama.rope.freq_base": float32(10000), "tokenizer.ggml.add_bos_token": true,
		"tokenizer.ggml.tokens": []string{"<s>", "</s>", "é", ""}, "test.large": uint64(1<<63 + 1), "test.small": int8(-5),
		"missing": nil,
	} {
		require.Equal(t, want, h.Metadata.Get(key), key)
	}
	blocks, ok := h.Metadata.Uint("llama.block_count")
	require.True(t, ok)
	require.Equal(t, uint64(2), blocks)
	for _, key := range []string{"test.small", "general.name", "missing"} {
		_, ok := h.Metadata.Uint(key)
		require.False(t, ok, key)
	}
	texts := h.Metadata.Texts()
	require.Equal(t, "test model", texts["general.name"])
	require.Equal(t, "10000", texts["llama.rope.freq_base"])
	require.Equal(t, "9223372036854775809", texts["test.large"])
	require.Equal(t, "true", texts["tokenizer.ggml.add_bos_token"])
	require.NotContains(t, texts, "tokenizer.ggml.tokens")
	require.Equal(t, gguf.TensorInfo{Name: "q4_0", DType: tensor.Q4_0, Shape: tensor.Shape{3, 512}}, h.Tensors[0])
	require.Len(t, h.Tensors, 10)
}

// Blocks have exactly the values that the gguf package computes.
func TestFloat32s(t *testing.T) {
	t.Parallel()
	data, h := quantised(t)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	byName := map[string]gguf.TensorInfo{}
	for _, info := range h.Tensors {
		byName[info.Name] = info
	}
	part := func(info gguf.TensorInfo) []byte { return data[h.DataOffset+info.Offset:][:info.Bytes()] }
	for _, name := range []string{"q4_0", "q8_0", "q4_k", "q6_k"} {
		info := byName[name]
		x, err := tensor.Empty(dev, info.DType, info.Shape)
		require.NoError(t, err)
		require.NoError(t, x.FillFrom(bytes.NewReader(part(info))))
		got, err := gguf.Float32s(x)
		require.NoError(t, err)
		require.NoError(t, x.Close())
		want := part(byName["expected."+name])
		require.Len(t, want, 4*len(got))
		for i := range got {
			require.Equal(t, math.Float32frombits(binary.LittleEndian.Uint32(want[4*i:])), got[i], "%s, element %d", name, i)
		}
	}
	x, err := tensor.FromSlice(dev, tensor.Shape{2}, []float32{1, 2})
	require.NoError(t, err)
	got, err := gguf.Float32s(x)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2}, got)
	require.NoError(t, x.Close())
	x, err = tensor.Empty(dev, tensor.Complex64, tensor.Shape{256})
	require.NoError(t, err)
	_, err = gguf.Float32s(x)
	require.ErrorIs(t, err, tensor.ErrDType)
	require.NoError(t, x.Close())
	for _, dt := range append(tensor.DTypes(), 0, 65, 107, 255) {
		require.ErrorIs(t, gguf.Dequantize(nil, dt, nil), tensor.ErrDType, dt)
	}
	require.ErrorIs(t, gguf.Dequantize(make([]float32, 33), tensor.Q4_0, make([]byte, 18)), gguf.ErrLength)
	require.ErrorIs(t, gguf.Dequantize(make([]float32, 32), tensor.Q4_0, make([]byte, 17)), gguf.ErrLength)
}

// Every data type that GGUF has survives writing and reading, and files are as llama.cpp requires them.
func TestWrite(t *testing.T) {
	t.Parallel()
	types := append([]tensor.DType{tensor.Float32, tensor.Float16, tensor.BFloat16, tensor.Float64, tensor.Int8, tensor.Int16, tensor.Int32,
		tensor.Int64}, tensor.QuantizedDTypes()...)
	var tensors []gguf.TensorInfo
	for _, dt := range types {
		tensors = append(tensors, gguf.TensorInfo{Name: dt.String(), DType: dt, Shape: tensor.Shape{3, 256}})
	}
	metadata := gguf.Metadata{
		{"a", uint8(1)}, {"b", int8(-1)}, {"c", uint16(2)}, {"d", int16(-2)}, {"e", uint32(3)}, {"f", int32(-3)}, {"g", uint64(4)},
		{"h", int64(-4)}, {"i", float32(1.5)}, {"j", 2.5}, {"k", true}, {"l", "text"},
		{"A", []uint8{1}}, {"B", []int8{-1}}, {"C", []uint16{2}}, {"D", []int16{-2}}, {"E", []uint32{3}}, {"F", []int32{-3}},
		{"G", []uint64{4}}, {"H", []int64{-4}}, {"I", []float32{1.5}}, {"J", []float64{2.5}}, {"K", []bool{true, false}}, {"L", []string{"x", ""}},
		{"M", []string{}}, {"general.alignment", uint32(64)},
	}
	h, err := gguf.NewHeader(tensors, metadata)
	require.NoError(t, err)
	var file bytes.Buffer
	fill := func(w io.Writer, t gguf.TensorInfo) error {
		_, err := w.Write(bytes.Repeat([]byte{byte(t.DType)}, int(t.Bytes())))
		return err
	}
	require.NoError(t, gguf.Write(&file, h, fill))
	require.Equal(t, h.FileBytes, int64(file.Len()))
	again := read(t, file.Bytes())
	require.Equal(t, h, again)
	for _, info := range again.Tensors {
		require.Zero(t, info.Offset%64)
		part := file.Bytes()[again.DataOffset+info.Offset:][:info.Bytes()]
		require.Equal(t, bytes.Repeat([]byte{byte(info.DType)}, len(part)), part)
	}
	long := func(w io.Writer, _ gguf.TensorInfo) error { _, err := w.Write(make([]byte, 1<<20)); return err }
	require.ErrorIs(t, gguf.Write(io.Discard, h, long), gguf.ErrLength)
	broken := func(io.Writer, gguf.TensorInfo) error { return io.ErrClosedPipe }
	require.ErrorIs(t, gguf.Write(io.Discard, h, broken), io.ErrClosedPipe)
	require.ErrorIs(t, gguf.Write(io.Discard, &gguf.Header{Alignment: 32}, fill), gguf.ErrLength)
	for _, bad := range []gguf.TensorInfo{
		{Name: "x", DType: tensor.Complex64, Shape: tensor.Shape{1}}, {Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1}},
	} {
		_, err := gguf.NewHeader([]gguf.TensorInfo{bad}, nil)
		require.ErrorIs(t, err, gguf.ErrType)
	}
	_, err = gguf.NewHeader(nil, gguf.Metadata{{"x", 1}})
	require.ErrorIs(t, err, gguf.ErrValue)
}

// raw builds a file from values in file order; strings get their length in front.
func raw(values ...any) []byte {
	var b bytes.Buffer
	for _, v := range values {
		switch v := v.(type) {
		case string:
			_ = binary.Write(&b, binary.LittleEndian, uint64(len(v)))
			b.WriteString(v)
		case []byte:
			b.Write(v)
		default:
			_ = binary.Write(&b, binary.LittleEndian, v)
		}
	}
	return b.Bytes()
}

// head is the beginning of a file with one tensor and no metadata.
func head(tensors, entries uint64) []byte {
	return raw([]byte("GGUF"), uint32(3), tensors, entries)
}

// entry is a tensor entry.
func entry(name string, dims []uint64, kind uint32, offset uint64) []byte {
	b := raw(name, uint32(len(dims)))
	for _, d := range dims {
		b = append(b, raw(d)...)
	}
	return append(b, raw(kind, offset)...)
}

// refusal is a file that is not valid, and the error about it.
type refusal struct {
	file []byte
	want error
}

// refusals returns files that are refused.
func refusals() map[string]refusal {
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	data := make([]byte, 256)
	one := func(e []byte) []byte { return join(head(1, 0), e, data) }
	two := func(a, b []byte) []byte { return join(head(2, 0), a, b, data) }
	meta := func(e []byte) []byte { return join(head(0, 1), e) }
	return map[string]refusal{
		"empty":             {nil, gguf.ErrTruncated},
		"other magic":       {[]byte("GGML0000000000000000"), gguf.ErrMagic},
		"version 1":         {raw([]byte("GGUF"), uint32(1), uint64(0), uint64(0)), gguf.ErrVersion},
		"version 4":         {raw([]byte("GGUF"), uint32(4), uint64(0), uint64(0)), gguf.ErrVersion},
		"big-endian":        {[]byte("GGUF\x00\x00\x00\x03"), gguf.ErrByteOrder},
		"cut":               {head(0, 0)[:20], gguf.ErrTruncated},
		"many tensors":      {head(1<<40, 0), gguf.ErrCount},
		"many entries":      {head(0, 1<<63), gguf.ErrCount},
		"long key":          {meta(raw(uint64(1 << 50))), gguf.ErrCount},
		"empty key":         {meta(raw("", uint32(0), uint8(0))), gguf.ErrKey},
		"key not UTF-8":     {meta(raw("\xff", uint32(0), uint8(0))), gguf.ErrUTF8},
		"twice":             {join(head(0, 2), raw("k", uint32(0), uint8(0)), raw("k", uint32(0), uint8(0))), gguf.ErrKey},
		"type":              {meta(raw("k", uint32(13), uint64(0))), gguf.ErrValue},
		"bool":              {meta(raw("k", uint32(7), uint8(2))), gguf.ErrValue},
		"long string":       {meta(raw("k", uint32(8), uint64(1<<62))), gguf.ErrCount},
		"long array":        {meta(raw("k", uint32(9), uint32(8), uint64(1<<40))), gguf.ErrCount},
		"nested array":      {meta(raw("k", uint32(9), uint32(9), uint64(1), uint64(0))), gguf.ErrValue},
		"array type":        {meta(raw("k", uint32(9), uint32(99), uint64(1), uint64(0))), gguf.ErrValue},
		"alignment type":    {meta(raw("general.alignment", uint32(8), "32")), gguf.ErrAlignment},
		"alignment":         {meta(raw("general.alignment", uint32(4), uint32(48))), gguf.ErrAlignment},
		"alignment 0":       {meta(raw("general.alignment", uint32(4), uint32(0))), gguf.ErrAlignment},
		"no name":           {one(entry("", []uint64{1}, 0, 0)), gguf.ErrName},
		"long name":         {one(entry(strings.Repeat("n", 64), []uint64{1}, 0, 0)), gguf.ErrName},
		"name not UTF-8":    {one(entry("\xff", []uint64{1}, 0, 0)), gguf.ErrUTF8},
		"same name":         {two(entry("n", []uint64{1}, 0, 0), entry("n", []uint64{1}, 0, 32)), gguf.ErrName},
		"scalar of a block": {one(entry("n", nil, 2, 0)), gguf.ErrShape},
		"five dimensions":   {one(entry("n", []uint64{1, 1, 1, 1, 1}, 0, 0)), gguf.ErrShape},
		"huge dimension":    {one(entry("n", []uint64{1 << 63}, 0, 0)), gguf.ErrShape},
		"overflow":          {one(entry("n", []uint64{1 << 40, 1 << 40}, 0, 0)), gguf.ErrShape},
		"half a block":      {one(entry("n", []uint64{16}, 2, 0)), gguf.ErrShape},
		"unknown type":      {one(entry("n", []uint64{32}, 4, 0)), gguf.ErrType},
		"unknown large":     {one(entry("n", []uint64{32}, 1<<31, 0)), gguf.ErrType},
		"unaligned":         {one(entry("n", []uint64{1}, 0, 4)), gguf.ErrAlignment},
		"behind the end":    {one(entry("n", []uint64{64}, 0, 224)), gguf.ErrTruncated},
		"offset overflows":  {one(entry("n", []uint64{1}, 0, 1<<63)), gguf.ErrTruncated},
		"overlap":           {two(entry("a", []uint64{16}, 0, 0), entry("b", []uint64{1}, 0, 32)), gguf.ErrOverlap},
		"data is missing":   {join(head(1, 0), entry("n", []uint64{1}, 0, 0)), gguf.ErrTruncated},
		"entries are cut":   {join(head(1, 0), entry("n", []uint64{1}, 0, 0)[:24]), gguf.ErrTruncated},
		"metadata is cut":   {meta(raw("k", uint32(10), uint32(0))), gguf.ErrTruncated},
		"string is too big": {meta(raw("k", uint32(8), uint64(9), uint64(0))), gguf.ErrCount},
	}
}

// Each violated rule is its own error, found before memory is allocated for what the file claims.
func TestReadHeaderRefuses(t *testing.T) {
	t.Parallel()
	for name, row := range refusals() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, err := gguf.ReadHeader(bytes.NewReader(row.file), int64(len(row.file)))
			require.ErrorIs(t, err, row.want)
			require.Nil(t, h)
		})
	}
	broken := errors.New("broken disk")
	_, err := gguf.ReadHeader(failing{broken}, 100)
	require.ErrorIs(t, err, broken)
}

// alignments returns files with one scalar of each alignment that ggml accepts.
func alignments() map[uint32][]byte {
	files := map[uint32][]byte{}
	for a := uint32(1); a <= 1<<16; a *= 2 {
		file := bytes.Join([][]byte{
			head(2, 1), raw("general.alignment", uint32(4), a), entry("n", nil, 0, 0), entry("m", []uint64{1}, 24, uint64(max(4, a))),
		}, nil)
		files[a] = append(file, make([]byte, int(a)-1-(len(file)-1)%int(a)+2*int(max(4, a)))...)
	}
	return files
}

// All alignments that are powers of two are accepted, and tensors without dimensions.
func TestReadHeaderAlignments(t *testing.T) {
	t.Parallel()
	for a, file := range alignments() {
		h := read(t, file)
		require.Equal(t, int64(a), h.Alignment)
		require.Equal(t, []gguf.TensorInfo{
			{Name: "n", DType: tensor.Float32, Shape: tensor.Shape{}}, {Name: "m", DType: tensor.Int8, Shape: tensor.Shape{1}, Offset: int64(max(4, a))},
		}, h.Tensors)
		again, err := gguf.NewHeader(h.Tensors, h.Metadata)
		require.NoError(t, err)
		require.Equal(t, h.DataOffset, again.DataOffset)
		var out bytes.Buffer
		require.NoError(t, gguf.Write(&out, again, func(w io.Writer, t gguf.TensorInfo) error { _, err := w.Write(make([]byte, t.Bytes())); return err }))
		require.Equal(t, file[:out.Len()], out.Bytes())
	}
	// The largest one needs 2 GiB before the data, which are not allocated.
	h, err := gguf.NewHeader([]gguf.TensorInfo{{Name: "n", DType: tensor.Float32}}, gguf.Metadata{{"general.alignment", uint32(1 << 31)}})
	require.NoError(t, err)
	require.Equal(t, int64(1<<31), h.DataOffset)
	var counted count
	require.NoError(t, gguf.Write(&counted, h, func(w io.Writer, _ gguf.TensorInfo) error { _, err := w.Write(make([]byte, 4)); return err }))
	require.Equal(t, h.FileBytes, int64(counted))
}

// count counts the bytes that are written.
type count int64

func (c *count) Write(p []byte) (int, error) { *c += count(len(p)); return len(p), nil }

type failing struct{ err error }

func (f failing) ReadAt(p []byte, _ int64) (int, error) { return iotest.ErrReader(f.err).Read(p) }

// A header above the limit is refused without reading the file.
func TestReadHeaderLimit(t *testing.T) {
	t.Parallel()
	size := int64(gguf.MaxHeaderBytes) * 2
	file := raw([]byte("GGUF"), uint32(3), uint64(0), uint64(1), "k", uint32(8), uint64(gguf.MaxHeaderBytes))
	_, err := gguf.ReadHeader(bytes.NewReader(append(file, make([]byte, 64)...)), size)
	require.ErrorIs(t, err, gguf.ErrHeaderTooLarge)
}

// ReadHeader returns an error, or a header whose tensors are in the file and that NewHeader accepts.
func FuzzReadHeader(f *testing.F) {
	if data, err := os.ReadFile("testdata/quantised.gguf"); err == nil {
		f.Add(data[:2048])
		f.Add(data)
	}
	f.Add(append(append(head(1, 1), raw("general.alignment", uint32(4), uint32(8))...), append(entry("n", []uint64{32}, 2, 0), make([]byte, 64)...)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := gguf.ReadHeader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			require.Nil(t, h)
			return
		}
		for _, info := range h.Tensors {
			require.LessOrEqual(t, h.DataOffset+info.Offset+info.Bytes(), int64(len(data)))
		}
		again, err := gguf.NewHeader(h.Tensors, h.Metadata)
		require.NoError(t, err)
		require.Len(t, again.Tensors, len(h.Tensors))
	})
}
