package module

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Synthetic describes a generated model: float32 tensors of equal length with the names "layers.00000000.weight" and so
// on. Equal descriptions give equal values in every process and on every machine, so that a reader can verify them. It
// serves demos, benchmarks and tests.
type Synthetic struct {
	// Tensors is the number of tensors, at least 1.
	Tensors int
	// Bytes is the total size, rounded down to whole rows of 64 elements, with at least one row for each tensor.
	Bytes int64
	// Seed determines the values.
	Seed uint64
}

const (
	syntheticColumns = 64
	syntheticPiece   = 1 << 20
	maxSynthetic     = 1 << 24
)

// rows returns the number of rows of each tensor.
func (s Synthetic) rows() (int64, error) {
	if s.Tensors < 1 || s.Tensors > maxSynthetic || s.Bytes < 0 || s.Bytes > 1<<50 {
		return 0, fmt.Errorf("synthetic model of %d tensors and %d bytes: %w", s.Tensors, s.Bytes, driver.ErrInvalid)
	}
	return max(1, s.Bytes/(int64(s.Tensors)*syntheticColumns*4)), nil
}

// header describes the model as a file.
func (s Synthetic) header() (*safetensors.Header, error) {
	rows, err := s.rows()
	if err != nil {
		return nil, err
	}
	infos := make([]safetensors.TensorInfo, s.Tensors)
	shape := tensor.Shape{rows, syntheticColumns}
	for i := range infos {
		// Eight digits, so that names sort like their numbers.
		infos[i] = safetensors.TensorInfo{Name: syntheticName(i), DType: tensor.Float32, Shape: shape}
	}
	return safetensors.NewHeader(infos, map[string]string{"format": "pt"})
}

// syntheticName returns the name of tensor i.
func syntheticName(i int) string { return fmt.Sprintf("layers.%08d.weight", i) }

// Synthesize makes the model in one slab of memory on dev and returns an owned state dict: what Load would make of the
// file that [SynthesizeFile] writes. Errors are [driver.ErrInvalid] and those of the device.
func Synthesize(dev driver.Device, s Synthetic) (*StateDict, error) {
	h, err := s.header()
	if err != nil {
		return nil, err
	}
	specs := make([]NamedSpec, len(h.Tensors))
	for i, t := range h.Tensors {
		specs[i] = NamedSpec{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	sd, err := New(dev, specs)
	if err != nil {
		return nil, err
	}
	sd.Metadata = h.Metadata
	for i := range specs {
		t := sd.at(i)
		if err := s.write(io.NewOffsetWriter(t.Storage().Memory(), t.Spec().ByteOffset), i, t.Bytes()); err != nil {
			return nil, errors.Join(err, sd.Close())
		}
	}
	return sd, nil
}

// SynthesizeFile writes the model to a safetensors file, as [safetensors.WriteFile] does.
func SynthesizeFile(path string, s Synthetic) error {
	h, err := s.header()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	next := 0
	return safetensors.WriteFile(path, h, func(w io.Writer, t safetensors.TensorInfo) error {
		err := s.write(w, next, t.Bytes())
		next++
		return err
	})
}

// write writes the values of tensor i, bytes long.
func (s Synthetic) write(w io.Writer, i int, bytes int64) error {
	state := splitmix64(s.Seed ^ splitmix64(uint64(i)))
	piece := make([]byte, min(syntheticPiece, bytes))
	for left := bytes; left > 0; {
		piece = piece[:min(int64(len(piece)), left)]
		// Rows of 64 elements are a whole number of pairs.
		for at := 0; at < len(piece); at += 8 {
			state += splitmixStep
			bits := splitmix64(state)
			binary.LittleEndian.PutUint32(piece[at:], math.Float32bits(unit(uint32(bits))))
			binary.LittleEndian.PutUint32(piece[at+4:], math.Float32bits(unit(uint32(bits>>32))))
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
		left -= int64(len(piece))
	}
	return nil
}

// unit maps 32 random bits to a float in [-0.5, 0.5), which is exact.
func unit(bits uint32) float32 { return float32(bits>>8)/(1<<24) - 0.5 }

// splitmixStep is the odd constant by which splitmix64 advances (Steele, Lea and Flood 2014).
const splitmixStep = 0x9e3779b97f4a7c15

// splitmix64 is the generator's output function: a bijection that looks random.
func splitmix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
