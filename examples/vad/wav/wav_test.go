package wav

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// file builds a RIFF file from chunks and sets its size right.
func file(chunks ...[]byte) []byte {
	body := append([]byte("WAVE"), bytes.Join(chunks, nil)...)
	return append(binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(len(body))), body...)
}

// chunk is one chunk with its padding.
func chunk(id string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint32([]byte(id), uint32(len(data)))
	b = append(b, data...)
	if len(data)%2 == 1 {
		b = append(b, 0)
	}
	return b
}

// format is the content of a "fmt " chunk.
func format(tag, channels uint16, rate uint32, bits uint16) []byte {
	align := channels * bits / 8
	le := binary.LittleEndian
	b := le.AppendUint16(nil, tag)
	b = le.AppendUint16(b, channels)
	b = le.AppendUint32(b, rate)
	b = le.AppendUint32(b, rate*uint32(align))
	b = le.AppendUint16(b, align)
	return le.AppendUint16(b, bits)
}

func extensible(sub uint16) []byte {
	b := append(format(formatExtensible, 1, 16000, 16), 22, 0, 16, 0, 4, 0, 0, 0)
	return append(binary.LittleEndian.AppendUint16(b, sub), pcmGUID...)
}

var (
	pcm  = chunk("fmt ", format(formatPCM, 1, 16000, 16))
	data = chunk("data", []byte{1, 0, 0xFF, 0xFF, 0, 0x80})
)

// unsized replaces the four size bytes at offset at by "unknown".
func unsized(b []byte, at int) []byte {
	b = bytes.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], toEnd)
	return b
}

func TestDecode(t *testing.T) {
	t.Parallel()
	want := &Clip{SampleRate: 16000, Samples: []int16{1, -1, -32768}}
	plain := file(pcm, data)
	for name, in := range map[string][]byte{
		"plain":             plain,
		"extensible":        file(chunk("fmt ", extensible(formatPCM)), data),
		"other chunks":      file(chunk("LIST", []byte("odd")), pcm, chunk("fact", nil), data, chunk("id3 ", []byte("x"))),
		"format with extra": file(chunk("fmt ", append(format(formatPCM, 1, 16000, 16), 0, 0)), data),
		"bytes behind":      append(bytes.Clone(plain), "behind"...),
		"from a pipe":       unsized(unsized(plain, 4), len(plain)-10),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Decode(bytes.NewReader(in), int64(len(in)))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	plain := file(pcm, data)
	many := make([][]byte, maxChunks)
	for i := range many {
		many[i] = chunk("JUNK", nil)
	}
	grown := bytes.Clone(plain)
	binary.LittleEndian.PutUint32(grown[len(grown)-10:], 1<<31)
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"empty":             {nil, ErrFormat},
		"only RIFF":         {[]byte("RIFF\x04\x00\x00\x00"), ErrFormat},
		"big-endian":        {append([]byte("RIFX"), plain[4:]...), ErrFormat},
		"64-bit":            {append([]byte("RF64"), plain[4:]...), ErrFormat},
		"not WAVE":          {append([]byte("RIFF\x1e\x00\x00\x00AVI "), plain[12:]...), ErrFormat},
		"cut off":           {plain[:len(plain)-1], ErrTruncated},
		"data too large":    {grown, ErrTruncated},
		"no chunk":          {file(), ErrChunk},
		"half a chunk head": {file(pcm, []byte("da")), ErrChunk},
		"no data":           {file(pcm), ErrChunk},
		"no format":         {file(data), ErrChunk},
		"two formats":       {file(pcm, pcm, data), ErrChunk},
		"short format":      {file(chunk("fmt ", make([]byte, 14)), data), ErrChunk},
		"half a sample":     {file(pcm, chunk("data", []byte{1, 2, 3})), ErrChunk},
		"too many chunks":   {file(append(many, pcm, data)...), ErrChunk},
		"stereo":            {file(chunk("fmt ", format(formatPCM, 2, 16000, 16)), data), ErrEncoding},
		"no channel":        {file(chunk("fmt ", format(formatPCM, 0, 16000, 16)), data), ErrEncoding},
		"8 bit":             {file(chunk("fmt ", format(formatPCM, 1, 16000, 8)), data), ErrEncoding},
		"24 bit":            {file(chunk("fmt ", format(formatPCM, 1, 16000, 24)), data), ErrEncoding},
		"float":             {file(chunk("fmt ", format(3, 1, 16000, 32)), data), ErrEncoding},
		"extensible float":  {file(chunk("fmt ", extensible(3)), data), ErrEncoding},
		"no rate":           {file(chunk("fmt ", format(formatPCM, 1, 0, 16)), data), ErrSampleRate},
	} {
		t.Run(name, func(t *testing.T) {
			clip, err := Decode(bytes.NewReader(c.in), int64(len(c.in)))
			require.ErrorIs(t, err, c.want)
			require.Nil(t, clip)
		})
	}
}

func TestDecodeFileThatShrinks(t *testing.T) {
	t.Parallel()
	in := file(pcm, data)
	_, err := Decode(bytes.NewReader(in[:len(in)-2]), int64(len(in)))
	require.ErrorIs(t, err, ErrTruncated)
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "clip.wav")
	require.NoError(t, os.WriteFile(path, file(pcm, data), 0o600))

	clip, err := ReadFile(path, 16000)
	require.NoError(t, err)
	require.Len(t, clip.Samples, 3)

	_, err = ReadFile(path, 8000)
	require.ErrorIs(t, err, ErrSampleRate)
	require.ErrorContains(t, err, path)
	_, err = ReadFile(filepath.Join(dir, "none.wav"), 16000)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = ReadFile(dir, 16000)
	require.ErrorIs(t, err, ErrFormat)
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, Encode(io.Discard, &Clip{Samples: []int16{1}}), ErrSampleRate)
}

func TestChunk(t *testing.T) {
	t.Parallel()
	clip := &Clip{SampleRate: 16000, Samples: []int16{0, 16384, -32768}}
	dst := []float32{9, 9}
	clip.Chunk(dst, 1)
	require.Equal(t, []float32{0.5, -1}, dst)
	clip.Chunk(dst, 2)
	require.Equal(t, []float32{-1, 0}, dst)
	clip.Chunk(dst, 5)
	require.Equal(t, []float32{0, 0}, dst)
}

// FuzzDecode holds Decode to its promise: an error, or a clip that encodes and decodes back to itself.
func FuzzDecode(f *testing.F) {
	plain := file(pcm, data)
	f.Add(plain)
	f.Add(file(chunk("fmt ", extensible(formatPCM)), chunk("LIST", []byte("odd")), data))
	f.Add(unsized(unsized(plain, 4), len(plain)-10))
	f.Add(plain[:20])
	f.Fuzz(func(t *testing.T, in []byte) {
		clip, err := Decode(bytes.NewReader(in), int64(len(in)))
		if err != nil {
			return
		}
		var out bytes.Buffer
		require.NoError(t, Encode(&out, clip))
		again, err := Decode(bytes.NewReader(out.Bytes()), int64(out.Len()))
		require.NoError(t, err)
		require.Equal(t, clip, again)
	})
}
