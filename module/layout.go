package module

import (
	"fmt"
	"maps"
	"math"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Alignment is the alignment in bytes of every tensor in a slab: that of cudaMalloc, sufficient for all vector loads.
const Alignment = 256

// Layout assigns each tensor of a model a place in one slab of device memory and the source of its bytes. It is a plain
// value.
type Layout struct {
	// SlabBytes is the size of the slab, a multiple of the device's granularity; 0 if no tensor has elements.
	SlabBytes int64
	// Tensors holds the tensors of the model in its order, each at a distinct offset, followed by tied names, sorted.
	Tensors []Placement
	// Metadata is that of the model; it may be nil.
	Metadata map[string]string
}

// Placement is one tensor of a layout.
type Placement struct {
	// Name is the tensor's name.
	Name string
	// Spec places the tensor in the slab, row-major.
	Spec tensor.Spec
	// TiedTo is the name whose bytes the tensor shares, or empty.
	TiedTo string
	// File is the index of the file that contains the bytes.
	File int
	// FileOffset is the offset of the bytes in the file.
	FileOffset int64
	// Bytes is their number.
	Bytes int64
}

// PlanLayout plans one slab for a model, rounded up to granularity bytes. It borrows the model and shares its shapes.
// The model's Ties become names for the same bytes. Errors are [ErrName], [ErrTooLarge] and the errors of
// [tensor.Spec.Validate].
func PlanLayout(model *safetensors.Model, granularity int64) (*Layout, error) {
	l := &Layout{Tensors: make([]Placement, 0, len(model.Tensors)), Metadata: maps.Clone(model.Metadata)}
	var end int64
	for i := range model.Tensors {
		t := &model.Tensors[i]
		if err := checkName(t.Name); err != nil {
			return nil, fmt.Errorf("%s: %w", model.Files[t.File].Path, err)
		}
		p := Placement{Name: t.Name, File: t.File, Bytes: t.Bytes()}
		p.FileOffset = model.Files[t.File].Header.DataOffset + t.Begin
		p.Spec = tensor.Spec{DType: t.DType, Shape: t.Shape}
		var ok bool
		if p.Spec.ByteOffset, ok = roundUp(end, Alignment); !ok || p.Spec.ByteOffset > math.MaxInt64-p.Bytes {
			return nil, fmt.Errorf("%s: %w: no room for tensor %s", model.Path, ErrTooLarge, quote(t.Name))
		}
		end = p.Spec.ByteOffset + p.Bytes
		l.Tensors = append(l.Tensors, p)
	}
	var ok bool
	if l.SlabBytes, ok = roundUp(end, max(granularity, Alignment)); !ok {
		return nil, fmt.Errorf("%s: %w", model.Path, ErrTooLarge)
	}
	if err := l.tie(model.Ties); err != nil {
		return nil, fmt.Errorf("%s: %w", model.Path, err)
	}
	for i := range l.Tensors {
		if err := l.Tensors[i].Spec.Validate(l.SlabBytes); err != nil {
			return nil, fmt.Errorf("%s: tensor %s: %w", model.Path, quote(l.Tensors[i].Name), err)
		}
	}
	return l, nil
}

// tie appends the names that are tied to a stored one.
func (l *Layout) tie(ties []safetensors.Tie) error {
	if len(ties) == 0 {
		return nil
	}
	stored := make(map[string]int, len(l.Tensors))
	for i := range l.Tensors {
		stored[l.Tensors[i].Name] = i
	}
	for _, t := range ties {
		if err := checkName(t.Name); err != nil {
			return fmt.Errorf("%w: %w", safetensors.ErrTies, err)
		}
		p := l.Tensors[stored[t.Kept]] // the model guarantees that it is stored
		p.Name, p.TiedTo = t.Name, t.Kept
		l.Tensors = append(l.Tensors, p)
	}
	return nil
}

// roundUp rounds the nonnegative n up to a multiple of unit; ok is false on overflow.
func roundUp(n, unit int64) (rounded int64, ok bool) {
	rest := n % unit
	if rest == 0 {
		return n, true
	}
	if n > math.MaxInt64-(unit-rest) {
		return 0, false
	}
	return n + unit - rest, true
}

// Manifest describes the state dict of the layout on a device.
func (l *Layout) Manifest(device driver.Info) *Manifest {
	m := &Manifest{Tensors: make([]TensorSpec, len(l.Tensors)), Metadata: l.Metadata}
	if len(l.Tensors) > 0 {
		m.Storages = []StorageSpec{{Bytes: l.SlabBytes, Device: device.UUID, DeviceType: device.Type}}
	}
	for i := range l.Tensors {
		m.Tensors[i] = TensorSpec{Name: l.Tensors[i].Name, Spec: l.Tensors[i].Spec}
	}
	return m
}
