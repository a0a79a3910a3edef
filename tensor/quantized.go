package tensor

import "fmt"

// The block-quantised types of the GGUF format, named as ggml names them. A block of adjacent elements of the last
// dimension shares scales, and elements cannot be addressed separately: the last dimension is a multiple of the block,
// and tensors are row-major. The number is 64 plus ggml_type in ggml/include/ggml.h; ggml-common.h defines the blocks.
// Package gguf converts them to float32.
const (
	Q4_0    DType = 66
	Q4_1    DType = 67
	Q5_0    DType = 70
	Q5_1    DType = 71
	Q8_0    DType = 72
	Q8_1    DType = 73
	Q2_K    DType = 74
	Q3_K    DType = 75
	Q4_K    DType = 76
	Q5_K    DType = 77
	Q6_K    DType = 78
	Q8_K    DType = 79
	IQ2_XXS DType = 80
	IQ2_XS  DType = 81
	IQ3_XXS DType = 82
	IQ1_S   DType = 83
	IQ4_NL  DType = 84
	IQ3_S   DType = 85
	IQ2_S   DType = 86
	IQ4_XS  DType = 87
	IQ1_M   DType = 93
	TQ1_0   DType = 98
	TQ2_0   DType = 99
	MXFP4   DType = 103
	NVFP4   DType = 104
	Q1_0    DType = 105
	Q2_0    DType = 106

	quantizedEnd DType = 107
)

// QuantizedDTypes returns all block-quantised types in the order of their numbers. The caller owns the slice.
func QuantizedDTypes() []DType {
	var all []DType
	for d := dtypeEnd; d < quantizedEnd; d++ {
		if d.Quantized() {
			all = append(all, d)
		}
	}
	return all
}

// Quantized reports whether d stores blocks of elements with shared scales, as [Q4_0] does.
func (d DType) Quantized() bool { return d < quantizedEnd && dtypes[d].kind == kindBlock }

// Block returns the smallest group of elements that fills whole bytes, and its size in bytes: 1 and 4 for Float32, 2
// and 1 for Float4E2M1FN, 32 and 18 for Q4_0; zeros for an invalid type.
func (d DType) Block() (elements, bytes int) {
	if !d.Valid() {
		return 0, 0
	}
	if d.Quantized() {
		return int(dtypes[d].elements), int(dtypes[d].bytes)
	}
	elements, bits := 1, d.BitSize()
	for bits*elements%8 != 0 {
		elements *= 2
	}
	return elements, bits * elements / 8
}

// measureBlocks completes e for a block-quantised type: each row is a number of whole blocks, and rows are adjacent.
func (s *Spec) measureBlocks(e *extents) error {
	block, _ := s.DType.Block()
	if len(s.Shape) == 0 || s.Shape[len(s.Shape)-1]%int64(block) != 0 {
		return fmt.Errorf("%w: the last size of %v%v is not a multiple of %d, the elements of a block", ErrShape, s.DType, s.Shape, block)
	}
	if s.Strides != nil && len(s.Strides) != len(s.Shape) {
		return fmt.Errorf("%w: %d strides for %d dimensions", ErrShape, len(s.Strides), len(s.Shape))
	}
	if !s.Contiguous() {
		return fmt.Errorf("%w: %v%v has strides %v, and blocks are row-major", ErrNotContiguous, s.DType, s.Shape, s.Strides)
	}
	e.span, e.contiguous = e.bytes, true
	return nil
}

// advanceBlocks is advance for a block-quantised type.
func (s *Spec) advanceBlocks(elements int64) error {
	block, bytes := s.DType.Block()
	if elements%int64(block) != 0 {
		return fmt.Errorf("%w: element %d of a %v tensor does not begin a block of %d", ErrNotView, elements, s.DType, block)
	}
	s.ByteOffset += elements / int64(block) * int64(bytes)
	return nil
}

// viewBlocks is [Tensor.View] between a block-quantised type and Uint8.
func (t *Tensor) viewBlocks(dt DType) (*Tensor, error) {
	s := t.own()
	from, last := s.DType, len(s.Shape)-1
	s.DType = dt
	if from == dt {
		return t.derive(s)
	}
	ok := last >= 0 && t.Contiguous()
	s.Strides = nil
	switch {
	case ok && dt == Uint8:
		s.Shape[last], _ = from.bytesFor(s.Shape[last]) // rows are whole blocks, and the tensor's bytes fit
	case ok && from == Uint8:
		elements, bytes := dt.Block()
		ok = s.Shape[last]%int64(bytes) == 0
		if ok {
			s.Shape[last], ok = mul(s.Shape[last]/int64(bytes), int64(elements))
		}
	default:
		ok = false
	}
	if !ok {
		return nil, fmt.Errorf("%w: %v%v as %v", ErrNotView, from, t.spec.Shape, dt)
	}
	return t.derive(s)
}
