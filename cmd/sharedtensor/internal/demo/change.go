package demo

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// change modifies the weights of a freshly loaded model: it flips the sign of every element of the largest tensor,
// preferring floating-point tensors. It returns the tensor's name, or "" if the model is empty.
func change(sd *module.StateDict) (string, error) {
	var name string
	var largest *tensor.Tensor
	for n, t := range sd.All() {
		if t.Bytes() > 0 && (largest == nil || preferred(t, largest)) {
			name, largest = n, t
		}
	}
	if largest == nil {
		return "", nil
	}
	mapped, ok := largest.Storage().Memory().(driver.Mapped)
	if !ok {
		return "", fmt.Errorf("tensor %q: %w: not in mapped memory", name, driver.ErrInvalid)
	}
	at := largest.Spec().ByteOffset
	turnSigns(mapped.Data()[at:at+largest.Bytes()], largest.DType())
	return name, nil
}

// preferred reports whether t is a better tensor to change.
func preferred(t, than *tensor.Tensor) bool {
	if a, b := t.DType().IsFloat(), than.DType().IsFloat(); a != b {
		return a
	}
	return t.Bytes() > than.Bytes()
}

// turnSigns flips the highest bit of each element: the sign bit, except for unsigned and complex types. A bool, which
// may only be 0 or 1, is negated. Of elements that share a byte, only one changes.
func turnSigns(data []byte, dt tensor.DType) {
	step, bit := max(dt.BitSize()/8, 1), byte(0x80)
	if dt == tensor.Bool {
		bit = 1
	}
	for i := step - 1; i < len(data); i += step { // little-endian: the highest byte is the last one
		data[i] ^= bit
	}
}
