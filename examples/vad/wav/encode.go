package wav

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

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
