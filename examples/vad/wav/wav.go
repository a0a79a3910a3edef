// Package wav reads and writes WAV files of speech: 16-bit PCM, one channel, any sample rate that the caller expects.
//
// The format is RIFF (Microsoft and IBM, "Multimedia Programming Interface and Data Specifications 1.0", 1991) with a
// "fmt " and a "data" chunk, and the WAVE_FORMAT_EXTENSIBLE form of "fmt ". Other chunks are skipped.
package wav

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// Errors of [Decode] and [ReadFile], wrapped with what was found.
var (
	// ErrFormat is a file that is not WAV at all.
	ErrFormat = errors.New("not a WAV file")
	// ErrTruncated is a file that ends before what its sizes announce.
	ErrTruncated = errors.New("WAV file is cut off")
	// ErrChunk is a chunk that is missing, in the wrong order, or of an impossible size.
	ErrChunk = errors.New("bad WAV chunk")
	// ErrEncoding is audio that this package does not read: not 16-bit PCM, or more than one channel.
	ErrEncoding = errors.New("unsupported WAV encoding")
	// ErrSampleRate means that the sample rate is not the expected one.
	ErrSampleRate = errors.New("unexpected WAV sample rate")
)

// Clip is a sequence of audio samples of one channel.
type Clip struct {
	// SampleRate is in samples a second.
	SampleRate int
	// Samples are the signed 16-bit samples in order of time.
	Samples []int16
}

const (
	// maxChunks limits the number of chunks that are read, so that a file of empty chunks costs no time. Real files
	// have a handful.
	maxChunks = 1024
	// toEnd is the size that programs write to a pipe if they do not know it.
	toEnd = 1<<32 - 1

	formatPCM        = 1
	formatExtensible = 0xFFFE
)

// pcmGUID is KSDATAFORMAT_SUBTYPE_PCM without its first two bytes, which repeat the format.
const pcmGUID = "\x00\x00\x00\x00\x10\x00\x80\x00\x00\xAA\x00\x38\x9B\x71"

// ReadFile reads the clip in the file at path, which must have the given sample rate. Errors name the file.
func ReadFile(path string, sampleRate int) (*Clip, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: not a regular file", path, ErrFormat)
	}
	clip, err := Decode(f, st.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if clip.SampleRate != sampleRate {
		return nil, fmt.Errorf("%s: %w: %d Hz, want %d Hz", path, ErrSampleRate, clip.SampleRate, sampleRate)
	}
	return clip, nil
}

// Decode reads the clip in the first size bytes of r, which it borrows. Nothing in the file is trusted: a size that
// goes past the end is an error before memory for it is allocated. Bytes after the RIFF chunk are ignored.
func Decode(r io.ReaderAt, size int64) (*Clip, error) {
	var head [12]byte
	if err := readAt(r, head[:], 0, size); err != nil {
		if errors.Is(err, ErrTruncated) {
			return nil, fmt.Errorf("%w: %d bytes", ErrFormat, size)
		}
		return nil, err
	}
	if string(head[:4]) != "RIFF" || string(head[8:]) != "WAVE" {
		return nil, fmt.Errorf("%w: begins with %q and %q, want \"RIFF\" and \"WAVE\"", ErrFormat, head[:4], head[8:])
	}
	end := size
	if n := binary.LittleEndian.Uint32(head[4:]); n != toEnd {
		if end = 8 + int64(n); end > size {
			return nil, fmt.Errorf("%w: %d bytes, its header says %d", ErrTruncated, size, end)
		}
	}
	return decodeChunks(r, end)
}

// decodeChunks walks the chunks from behind the RIFF header to end.
func decodeChunks(r io.ReaderAt, end int64) (*Clip, error) {
	var clip *Clip
	at := int64(12)
	for range maxChunks {
		var head [8]byte
		err := readAt(r, head[:], at, end)
		if err != nil {
			if errors.Is(err, ErrTruncated) {
				return nil, fmt.Errorf("%w: no \"data\" chunk", ErrChunk)
			}
			return nil, err
		}
		at += 8
		id, n := string(head[:4]), int64(binary.LittleEndian.Uint32(head[4:]))
		if id == "data" && n == toEnd {
			n = (end - at) &^ 1
		}
		if n > end-at {
			return nil, fmt.Errorf("%w: chunk %q of %d bytes, %d are left", ErrTruncated, id, n, end-at)
		}
		switch {
		case id == "fmt " && clip != nil:
			return nil, fmt.Errorf("%w: a second \"fmt \"", ErrChunk)
		case id == "fmt ":
			rate, err := decodeFormat(r, at, n, end)
			if err != nil {
				return nil, err
			}
			clip = &Clip{SampleRate: rate}
		case id == "data" && clip == nil:
			return nil, fmt.Errorf("%w: \"data\" before \"fmt \"", ErrChunk)
		case id == "data":
			clip.Samples, err = decodeSamples(r, at, n, end)
			if err != nil {
				return nil, err
			}
			return clip, nil
		}
		at += n + n&1 // chunks begin at even offsets
	}
	return nil, fmt.Errorf("%w: no \"data\" among the first %d", ErrChunk, maxChunks)
}

// decodeFormat checks the "fmt " chunk of n bytes at offset at and returns the sample rate.
func decodeFormat(r io.ReaderAt, at, n, end int64) (int, error) {
	if n < 16 {
		return 0, fmt.Errorf("%w: \"fmt \" of %d bytes, want at least 16", ErrChunk, n)
	}
	var b [40]byte
	if err := readAt(r, b[:min(n, 40)], at, end); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	format, channels, rate := le.Uint16(b[0:]), le.Uint16(b[2:]), le.Uint32(b[4:])
	align, bits := le.Uint16(b[12:]), le.Uint16(b[14:])
	if format == formatExtensible && n >= 40 && string(b[26:]) == pcmGUID {
		format = le.Uint16(b[24:])
	}
	switch {
	case format != formatPCM:
		return 0, fmt.Errorf("%w: format %d, want %d (PCM)", ErrEncoding, format, formatPCM)
	case channels != 1:
		return 0, fmt.Errorf("%w: %d channels, want 1", ErrEncoding, channels)
	case bits != 16 || align != 2:
		return 0, fmt.Errorf("%w: %d bits in %d bytes a sample, want 16 in 2", ErrEncoding, bits, align)
	case rate == 0 || rate > 1<<24:
		return 0, fmt.Errorf("%w: %d Hz", ErrSampleRate, rate)
	}
	return int(rate), nil
}

// decodeSamples reads n bytes of samples at offset at.
func decodeSamples(r io.ReaderAt, at, n, end int64) ([]int16, error) {
	if n%2 != 0 {
		return nil, fmt.Errorf("%w: \"data\" of %d bytes is not a whole number of samples", ErrChunk, n)
	}
	samples := make([]int16, 0, n/2)
	buf := make([]byte, min(n, 64<<10))
	for n > 0 {
		piece := buf[:min(n, int64(len(buf)))]
		if err := readAt(r, piece, at, end); err != nil {
			return nil, err
		}
		for i := 0; i < len(piece); i += 2 {
			samples = append(samples, int16(binary.LittleEndian.Uint16(piece[i:])))
		}
		at += int64(len(piece))
		n -= int64(len(piece))
	}
	return samples, nil
}

// readAt fills b from offset at; reaching behind end, or the end of r, is ErrTruncated.
func readAt(r io.ReaderAt, b []byte, at, end int64) error {
	if int64(len(b)) > end-at {
		return fmt.Errorf("%w: %d bytes at offset %d, %d are there", ErrTruncated, len(b), at, max(end-at, 0))
	}
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it became shorter while it was read", ErrTruncated)
	}
	return err
}

// Chunk fills dst with the samples from offset at on, scaled to -1 to 1 (by 1/32768), and with zeros behind the clip's
// end. at must not be negative.
func (c *Clip) Chunk(dst []float32, at int) {
	n := 0
	if at < len(c.Samples) {
		for _, s := range c.Samples[at:min(at+len(dst), len(c.Samples))] {
			dst[n] = float32(s) / 32768
			n++
		}
	}
	clear(dst[n:])
}

// Encode writes the clip, which it borrows, as a WAV file. More samples or a higher rate than the format's 32-bit sizes
// hold are refused before anything is written.
func Encode(w io.Writer, clip *Clip) error {
	if clip.SampleRate <= 0 || clip.SampleRate > 1<<24 {
		return fmt.Errorf("%w: %d Hz", ErrSampleRate, clip.SampleRate)
	}
	bytes := 2 * int64(len(clip.Samples))
	if bytes > math.MaxUint32-64 {
		return fmt.Errorf("%w: %d samples are too many for one file", ErrChunk, len(clip.Samples))
	}
	le := binary.LittleEndian
	out := make([]byte, 0, 44+bytes)
	out = append(out, "RIFF"...)
	out = le.AppendUint32(out, uint32(36+bytes))
	out = append(out, "WAVEfmt "...)
	out = le.AppendUint32(out, 16)
	out = le.AppendUint16(out, formatPCM)
	out = le.AppendUint16(out, 1)
	out = le.AppendUint32(out, uint32(clip.SampleRate))
	out = le.AppendUint32(out, uint32(2*clip.SampleRate))
	out = le.AppendUint16(out, 2)
	out = le.AppendUint16(out, 16)
	out = append(out, "data"...)
	out = le.AppendUint32(out, uint32(bytes))
	for _, s := range clip.Samples {
		out = le.AppendUint16(out, uint16(s))
	}
	_, err := w.Write(out)
	return err
}
