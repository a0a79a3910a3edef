package demonet

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Result is the result of a computation. Results for equal bytes are equal (==) on the same kind of machine.
type Result struct {
	// Network is the computation: "transformer" for the network of this package, "pass" for [Pass].
	Network string
	// Tensors is the number of names in the model.
	Tensors int
	// Bytes is the size of the model. Shared bytes count once.
	Bytes int64
	// Value is a number to display: the network's highest score, or the root mean square of all finite products of a
	// pass.
	Value float64
	// Checksum covers every bit of the result.
	Checksum uint64
}

// String returns the value and the checksum.
func (r Result) String() string { return fmt.Sprintf("%.6g (%016x)", r.Value, r.Checksum) }

// Evaluate runs a computation on any model: the network of this package if sd contains it, otherwise [Pass]. It borrows
// sd and reads its bytes in place. If ctx ends, it stops between tensors and returns the cause.
func Evaluate(ctx context.Context, sd *module.StateDict) (Result, error) {
	n, err := New(sd)
	if err != nil {
		return Pass(ctx, sd)
	}
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	tokens := []int{1, 2, 3, 5, 8, 13}
	for i := range tokens {
		tokens[i] %= n.config.Vocab
	}
	scores, err := n.Run(tokens)
	if err != nil {
		return Result{}, err
	}
	s := sink{}
	s.products(scores)
	top := float64(scores[0])
	for _, v := range scores {
		top = max(top, float64(v))
	}
	return Result{Network: "transformer", Tensors: sd.Len(), Bytes: sd.Bytes(), Value: top, Checksum: s.sum}, nil
}

// Pass reads every byte of every tensor of sd, in the dict's order. A tensor of floating-point numbers of 8 to 32 bits
// is multiplied by a fixed vector, as the matrix of its first dimension by all others. It reads float32 on the host in
// place and converts other types in pieces. For tensors of other types it computes a checksum. It borrows sd.
//
// Pass is a workload, not a digest: a product may round a small difference away. Use [module.Digests] to compare bytes.
func Pass(ctx context.Context, sd *module.StateDict) (Result, error) {
	s := sink{}
	for name, t := range sd.All() {
		if err := context.Cause(ctx); err != nil {
			return Result{}, err
		}
		if err := s.tensor(ctx, t); err != nil {
			return Result{}, fmt.Errorf("tensor %q: %w", name, err)
		}
	}
	r := Result{Network: "pass", Tensors: sd.Len(), Bytes: sd.Bytes(), Checksum: s.sum}
	if s.finite > 0 {
		r.Value = math.Sqrt(s.squares / float64(s.finite))
	}
	return r, nil
}

// sink accumulates results.
type sink struct {
	sum     uint64
	squares float64
	finite  int64
	vector  []float32
}

// tensor processes one tensor.
func (s *sink) tensor(ctx context.Context, t *tensor.Tensor) error {
	if t.NumElements() == 0 {
		return nil
	}
	if !multiplied(t.DType()) {
		h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
		if _, err := t.WriteTo(h); err != nil {
			return err
		}
		s.fold(uint64(h.Sum32()))
		return nil
	}
	width := t.NumElements()
	if t.Rank() > 0 {
		width /= t.Shape()[0]
	}
	width = min(width, maxWidth)
	if data, err := tensor.Data[float32](t); err == nil {
		s.matvec(data, int(width))
		return nil
	}
	return s.pieces(ctx, t, width)
}

// multiplied reports whether a tensor is multiplied as float32, which can represent every value of its type.
func multiplied(dt tensor.DType) bool {
	return dt.IsFloat() && dt.BitSize() >= 8 && dt.BitSize() <= 32
}

const (
	maxWidth    = 1 << 16 // length of the fixed vector; longer rows are split
	pieceLength = 1 << 20 // elements converted at a time, a multiple of maxWidth
)

// pieces processes the tensor in pieces converted to float32.
func (s *sink) pieces(ctx context.Context, t *tensor.Tensor, width int64) (err error) {
	flat, err := t.Reshape(tensor.Shape{-1})
	if errors.Is(err, tensor.ErrNotView) {
		return s.converted(t, width) // strided: it has no flat view, so it is copied as a whole
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flat.Close()) }()
	step := pieceLength / width * width
	for at := int64(0); at < flat.NumElements(); at += step {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		piece, err := flat.Narrow(0, at, min(step, flat.NumElements()-at))
		if err != nil {
			return err
		}
		if err := errors.Join(s.converted(piece, width), piece.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (s *sink) converted(t *tensor.Tensor, width int64) error {
	data, err := tensor.Float32s(t)
	if err != nil {
		return err
	}
	s.matvec(data, int(width))
	return nil
}

// matvec multiplies the matrix of rows of the given width by the fixed vector. The last row may be short.
func (s *sink) matvec(data []float32, width int) {
	for state := uint64(len(s.vector)); len(s.vector) < width; state = uint64(len(s.vector)) {
		s.vector = append(s.vector, unit(splitmix(&state)))
	}
	for len(data) > 0 {
		n := min(width, len(data))
		s.product(dot(data[:n], s.vector[:n]))
		data = data[n:]
	}
}

func (s *sink) products(values []float32) {
	for _, v := range values {
		s.product(v)
	}
}

// product accumulates one number. NaNs and infinities count in the checksum only.
func (s *sink) product(v float32) {
	s.fold(uint64(math.Float32bits(v)))
	if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
		s.squares += f * f
		s.finite++
	}
}

// fold adds a number to the checksum, which depends on the order.
func (s *sink) fold(v uint64) {
	state := s.sum ^ v
	s.sum = splitmix(&state)
}
