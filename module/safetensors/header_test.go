package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// file returns a file with the header's text and n zero bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func read(b []byte) (*Header, error) { return ReadHeader(bytes.NewReader(b), int64(len(b))) }

func TestReadHeader(t *testing.T) {
	t.Parallel()
	h, err := read(file(`{"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},`+
		`"a\u00e9\n\ud83d\ude00":{"data_offsets":[0,2],"shape":[],"dtype":"BF16"},`+
		`"empty":{"dtype":"I64","shape":[4,0],"data_offsets":[2,2]},`+
		`"__metadata__":{"format":"pt","":"\"quoted\\\""}, "four":{"dtype":"F4","shape":[2],"data_offsets":[26,27]}}   `, 27))
	require.NoError(t, err)
	require.Equal(t, []TensorInfo{
		{Name: "aé\n😀", DType: tensor.BFloat16, Shape: tensor.Shape{}, Begin: 0, End: 2},
		{Name: "empty", DType: tensor.Int64, Shape: tensor.Shape{4, 0}, Begin: 2, End: 2},
		{Name: "b", DType: tensor.Float32, Shape: tensor.Shape{2, 3}, Begin: 2, End: 26},
		{Name: "four", DType: tensor.Float4E2M1FN, Shape: tensor.Shape{2}, Begin: 26, End: 27},
	}, h.Tensors)
	require.Equal(t, map[string]string{"format": "pt", "": `"quoted\"`}, h.Metadata)
	require.Equal(t, int64(27), h.DataBytes())
}

func TestReadHeaderWithoutTensors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{}", "{ }", `{"__metadata__":{}}`} {
		h, err := read(file(text, 0))
		require.NoError(t, err, text)
		require.Empty(t, h.Tensors)
	}
}

// one returns the header of a single tensor with the given entry.
func one(entry string) string { return `{"w":` + entry + `}` }

// f32 returns the entry of n float32 elements at a place.
func f32(n, begin, end int) string {
	return fmt.Sprintf(`{"dtype":"F32","shape":[%d],"data_offsets":[%d,%d]}`, n, begin, end)
}

func TestHostileHeaders(t *testing.T) {
	t.Parallel()
	max := "9223372036854775807"
	for _, c := range []struct {
		name  string
		bytes []byte
		want  error
	}{
		{"empty file", nil, ErrTruncated},
		{"seven bytes", make([]byte, 7), ErrTruncated},
		{"header longer than the file", file("{}", 0)[:9], ErrTruncated},
		{"length only", []byte{2, 0, 0, 0, 0, 0, 0, 0}, ErrTruncated},
		{"header over the limit", binary.LittleEndian.AppendUint64(nil, MaxHeaderBytes+1), ErrHeaderTooLarge},
		{"header of 2^64-1", bytes.Repeat([]byte{255}, 16), ErrHeaderTooLarge},
		{"header of 2^63", append(make([]byte, 7), 0x80, '{', '}'), ErrHeaderTooLarge},
		{"no header", file("", 0), ErrHeaderStart},
		{"leading space", file(" {}", 0), ErrHeaderStart},
		{"array", file("[]", 0), ErrHeaderStart},
		{"byte order mark", file("\ufeff{}", 0), ErrHeaderStart},
		{"not closed", file("{", 0), ErrHeaderJSON},
		{"no key", file("{1:2}", 0), ErrHeaderJSON},
		{"comma at the end", file(`{"w":`+f32(1, 0, 4)+`,}`, 4), ErrHeaderJSON},
		{"no colon", file(`{"w"`+f32(1, 0, 4)+`}`, 4), ErrHeaderJSON},
		{"no comma", file(`{"a":`+f32(0, 0, 0)+`"b":`+f32(0, 0, 0)+`}`, 0), ErrHeaderJSON},
		{"raw newline in a string", file("{\"a\n\":1}", 0), ErrHeaderJSON},
		{"raw newline behind an escape", file("{\"a\\t\n\":1}", 0), ErrHeaderJSON},
		{"unknown escape", file(`{"\x":1}`, 0), ErrHeaderJSON},
		{"half a surrogate pair", file(`{"\ud800":1}`, 0), ErrHeaderJSON},
		{"surrogate and another", file(`{"\ud800\u0041":1}`, 0), ErrHeaderJSON},
		{"surrogate and garbage", file(`{"\ud800\uzzzz":1}`, 0), ErrHeaderJSON},
		{"second half alone", file(`{"\udc00":1}`, 0), ErrHeaderJSON},
		{"short escape", file(`{"\u00`, 0), ErrHeaderJSON},
		{"escape at the end", file(`{"\`, 0), ErrHeaderJSON},
		{"ends behind an escape", file(`{"\n`, 0), ErrHeaderJSON},
		{"leading zero", file(one(`{"shape":[01]}`), 0), ErrHeaderJSON},
		{"bare minus", file(one(`{"shape":[-]}`), 0), ErrHeaderJSON},
		{"dot without digits", file(one(`{"shape":[1.]}`), 0), ErrHeaderJSON},
		{"exponent without digits", file(one(`{"shape":[1e+]}`), 0), ErrHeaderJSON},
		{"ends in an entry", file(`{"w":`, 0), ErrHeaderJSON},
		{"garbage for an entry", file(`{"w":?}`, 0), ErrHeaderJSON},
		{"garbage behind", file("{}x", 0), ErrTrailingJSON},
		{"zero behind", file("{}\x00", 0), ErrTrailingJSON},
		{"second object", file("{}{}", 0), ErrTrailingJSON},
		{"name is not UTF-8", file("{\"\xff\":"+f32(1, 0, 4)+"}", 4), ErrUTF8},
		{"overlong UTF-8", file("{\"\xc0\x80\":"+f32(1, 0, 4)+"}", 4), ErrUTF8},
		{"deep arrays", file(one(`{"shape":`+strings.Repeat("[", 1e6)), 0), ErrNesting},
		{"deep object", file(one(`{"shape":[{"a":1}]}`), 0), ErrNesting},
		{"entry is an array", file(one(`[]`), 0), ErrType},
		{"entry is null", file(one(`null`), 0), ErrType},
		{"dtype is a number", file(one(`{"dtype":32}`), 0), ErrType},
		{"dtype is an object", file(one(`{"dtype":{}}`), 0), ErrType},
		{"shape is a number", file(one(`{"shape":3}`), 0), ErrType},
		{"dimension is a string", file(one(`{"shape":["3"]}`), 0), ErrType},
		{"dimension is a fraction", file(one(`{"shape":[1.0]}`), 0), ErrType},
		{"dimension has an exponent", file(one(`{"shape":[1e2]}`), 0), ErrType},
		{"dimension is true", file(one(`{"shape":[true]}`), 0), ErrType},
		{"offsets are null", file(one(`{"data_offsets":null}`), 0), ErrType},
		{"name twice", file(`{"w":`+f32(1, 0, 4)+`,"w":`+f32(1, 4, 8)+`}`, 8), ErrDuplicateName},
		{"name twice, once escaped", file(`{"w":`+f32(1, 0, 4)+`,"\u0077":`+f32(1, 0, 4)+`}`, 4), ErrDuplicateName},
		{"key twice", file(one(`{"dtype":"F32","dtype":"F32"}`), 0), ErrDuplicateKey},
		{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), ErrDuplicateKey},
		{"metadata key twice", file(`{"__metadata__":{"a":"b","a":"b"}}`, 0), ErrDuplicateKey},
		{"unknown key", file(one(`{"strides":[1]}`), 0), ErrUnknownKey},
		{"key in capitals", file(one(`{"Dtype":"F32"}`), 0), ErrUnknownKey},
		{"no keys", file(one(`{}`), 0), ErrMissingKey},
		{"no dtype", file(one(`{"shape":[],"data_offsets":[0,0]}`), 0), ErrMissingKey},
		{"unknown dtype", file(one(`{"dtype":"F33","shape":[],"data_offsets":[0,4]}`), 4), ErrDType},
		{"dtype in small letters", file(one(`{"dtype":"f32","shape":[],"data_offsets":[0,4]}`), 4), ErrDType},
		{"negative dimension", file(one(`{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}`), 4), ErrShape},
		{"minus zero", file(one(`{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}`), 0), ErrShape},
		{"rank 65", file(one(`{"shape":[`+strings.Repeat("1,", 64)+`1]}`), 0), ErrShape},
		{"dimension over 63 bits", file(one(`{"shape":[9223372036854775808]}`), 0), ErrOverflow},
		{"product over 63 bits", file(one(`{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}`), 0), ErrOverflow},
		{"bytes over 63 bits", file(one(`{"dtype":"F64","shape":[`+max+`],"data_offsets":[0,`+max+`]}`), 0), ErrOverflow},
		{"half a byte", file(one(`{"dtype":"F4","shape":[3],"data_offsets":[0,2]}`), 2), ErrMisaligned},
		{"six bits", file(one(`{"dtype":"F6_E2M3","shape":[2],"data_offsets":[0,2]}`), 2), ErrMisaligned},
		{"negative offset", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}`), 1), ErrOffset},
		{"backwards", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[1,0]}`), 1), ErrOffset},
		{"one offset", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[1]}`), 1), ErrOffset},
		{"three offsets", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}`), 1), ErrOffset},
		{"too short for its shape", file(one(f32(2, 0, 4)), 4), ErrLength},
		{"too long for its shape", file(one(f32(0, 0, 4)), 4), ErrLength},
		{"same bytes twice", file(`{"a":`+f32(1, 0, 4)+`,"b":`+f32(1, 0, 4)+`}`, 4), ErrOverlap},
		{"overlap", file(`{"a":`+f32(2, 0, 8)+`,"b":`+f32(2, 4, 12)+`}`, 12), ErrOverlap},
		{"empty tensor inside another", file(`{"a":`+f32(2, 0, 8)+`,"b":`+f32(0, 4, 4)+`}`, 8), ErrOverlap},
		{"hole at the front", file(one(f32(1, 4, 8)), 8), ErrHole},
		{"hole", file(`{"a":`+f32(1, 0, 4)+`,"b":`+f32(1, 5, 9)+`}`, 9), ErrHole},
		{"empty tensor behind the end", file(`{"a":`+f32(0, 8, 8)+`}`, 8), ErrHole},
		{"data cut off", file(one(f32(2, 0, 8)), 7), ErrTruncated},
		{"offset near 2^63", file(one(`{"dtype":"U8","shape":[`+max+`],"data_offsets":[0,`+max+`]}`), 0), ErrTruncated},
		{"data goes on", file(one(f32(2, 0, 8)), 9), ErrTrailingData},
		{"data without tensors", file("{}", 1), ErrTrailingData},
		{"metadata is a string", file(`{"__metadata__":"x"}`, 0), ErrMetadata},
		{"metadata is null", file(`{"__metadata__":null}`, 0), ErrMetadata},
		{"metadata value is a number", file(`{"__metadata__":{"a":1}}`, 0), ErrMetadata},
		{"metadata value is an object", file(`{"__metadata__":{"a":{}}}`, 0), ErrMetadata},
		{"metadata is a tensor", file(`{"__metadata__":`+f32(1, 0, 4)+`}`, 4), ErrMetadata},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := read(c.bytes)
			require.ErrorIs(t, err, c.want)
			require.Nil(t, h)
			require.Less(t, len(err.Error()), 500)
		})
	}
}

func TestErrorsNameTheTensor(t *testing.T) {
	t.Parallel()
	_, err := read(file(`{"lm_head.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4))
	require.EqualError(t, err, `tensor "lm_head.weight": length does not match shape and dtype: 4 bytes, not 8`)
}

func TestErrorsCutLongNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{strings.Repeat("x", 1e6), strings.Repeat("é", 1e6), "x" + strings.Repeat("é", 1e6)} {
		_, err := read(file(`{"`+name+`":{}}`, 0))
		require.ErrorIs(t, err, ErrMissingKey)
		require.Less(t, len(err.Error()), 500)
		require.True(t, utf8.ValidString(err.Error()))
		require.NotContains(t, err.Error(), `\x`)
	}
}

// Tensors of packed dtypes with fewer and more than eight elements.
func TestPackedLengths(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		dtype string
		n     int
		bytes int // -1 if they do not end on a byte
	}{
		{"F4", 0, 0}, {"F4", 2, 1}, {"F4", 7, -1}, {"F4", 8, 4}, {"F4", 9, -1}, {"F4", 10, 5}, {"F4", 16, 8}, {"F4", 22, 11},
		{"F6_E2M3", 4, 3}, {"F6_E2M3", 8, 6}, {"F6_E2M3", 10, -1}, {"F6_E2M3", 12, 9}, {"F6_E3M2", 16, 12}, {"F6_E3M2", 20, 15}, {"F6_E3M2", 21, -1},
	} {
		for _, bytes := range []int{test.bytes - 1, test.bytes, test.bytes + 1} {
			if bytes < 0 {
				continue
			}
			_, err := read(file(fmt.Sprintf(`{"w":{"dtype":"%s","shape":[%d],"data_offsets":[0,%d]}}`, test.dtype, test.n, bytes), bytes))
			switch {
			case test.bytes < 0:
				require.ErrorIs(t, err, ErrMisaligned, "%d of %s", test.n, test.dtype)
			case bytes == test.bytes:
				require.NoError(t, err, "%d of %s", test.n, test.dtype)
			default:
				require.ErrorIs(t, err, ErrLength, "%d of %s in %d bytes", test.n, test.dtype, bytes)
			}
		}
	}
}

// Tensors that begin at the same byte are written in the order of the reference implementation: widest alignment first,
// then by name.
func TestOrderOfEmptyTensors(t *testing.T) {
	t.Parallel()
	none := tensor.Shape{0}
	h, err := NewHeader([]TensorInfo{
		{Name: "a", DType: tensor.Int8, Shape: none}, {Name: "b", DType: tensor.Float64, Shape: none}, {Name: "c", DType: tensor.Float16, Shape: none},
		{Name: "d", DType: tensor.Float32, Shape: tensor.Shape{1}}, {Name: "e", DType: tensor.Float32, Shape: none}, {Name: "0", DType: tensor.Int64, Shape: none},
		{Name: "aa", DType: tensor.Int8, Shape: none},
	}, nil)
	require.NoError(t, err)
	text, err := h.Encode()
	require.NoError(t, err)
	require.Equal(t, `{"0":{"dtype":"I64","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},`+
		`"d":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},`+
		`"c":{"dtype":"F16","shape":[0],"data_offsets":[4,4]},"a":{"dtype":"I8","shape":[0],"data_offsets":[4,4]},`+
		`"aa":{"dtype":"I8","shape":[0],"data_offsets":[4,4]}}`, strings.TrimRight(string(text[8:]), " "))
	back, err := ReadHeader(strings.NewReader(string(text)+"1234"), int64(len(text))+4)
	require.NoError(t, err)
	require.Equal(t, h.Tensors, back.Tensors)
}

// limitReader fails the test if a read exceeds limit bytes.
type limitReader struct {
	t     *testing.T
	bytes []byte
	limit int
}

func (r limitReader) ReadAt(p []byte, off int64) (int, error) {
	require.LessOrEqual(r.t, len(p), r.limit)
	return bytes.NewReader(r.bytes).ReadAt(p, off)
}

func TestHeaderSizeIsCheckedBeforeReading(t *testing.T) {
	t.Parallel()
	prefix := binary.LittleEndian.AppendUint64(nil, MaxHeaderBytes+1)
	_, err := ReadHeader(limitReader{t, prefix, sniffBytes}, 1<<40)
	require.ErrorIs(t, err, ErrHeaderTooLarge)
	prefix = binary.LittleEndian.AppendUint64(nil, MaxHeaderBytes)
	_, err = ReadHeader(limitReader{t, prefix, sniffBytes}, 100)
	require.ErrorIs(t, err, ErrTruncated)
}

var errBroken = errors.New("broken disk")

type brokenReader struct{ after int64 }

func (r brokenReader) ReadAt(p []byte, off int64) (int, error) {
	if off >= r.after {
		return 0, errBroken
	}
	p[0] = 2
	return len(p), nil
}

func TestReadErrorsPass(t *testing.T) {
	t.Parallel()
	for _, after := range []int64{0, 8} {
		_, err := ReadHeader(brokenReader{after}, 10)
		require.ErrorIs(t, err, errBroken)
	}
	// A file that became shorter between its stat and the read.
	_, err := ReadHeader(bytes.NewReader(file("{}", 0)[:9]), 10)
	require.ErrorIs(t, err, ErrTruncated)
}

// headerOnly is a file of size bytes of which only the header exists.
type headerOnly struct{ header []byte }

func (f headerOnly) ReadAt(p []byte, off int64) (int, error) {
	n := copy(p, f.header[min(off, int64(len(f.header))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func TestHugeSparseFile(t *testing.T) {
	t.Parallel()
	const size = int64(1) << 62
	text := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, size, size)
	h, err := ReadHeader(headerOnly{file(text, 0)}, size+8+int64(len(text)))
	require.NoError(t, err)
	require.Equal(t, size, h.Tensors[0].Bytes())
}
