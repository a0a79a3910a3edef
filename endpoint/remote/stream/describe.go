package stream

import (
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// description is a set as its sender described it, checked.
type description struct {
	id, name string
	version  uint64
	metadata map[string]string
	tensors  []described
	bytes    int64 // of the memory for all of them
}

// described is one tensor of a set, at an offset of the memory for all.
type described struct {
	name  string
	spec  tensor.Spec
	bytes int64
}

// alignment is that of tensors in one piece of memory.
const alignment = 256

// describe checks what a peer says of a set. Nothing of the size that it claims is allocated.
func describe(set *streampb.Set, limits Limits) (*description, error) {
	if n := len(set.GetTensors()); n > limits.Tensors {
		return nil, fmt.Errorf("%w: %d tensors are more than %d", ErrLimit, n, limits.Tensors)
	}
	d := &description{id: set.GetId(), name: set.GetName(), version: set.GetVersion(), metadata: set.GetMetadata()}
	if len(d.id) > maxID || len(d.name) > maxID {
		return nil, fmt.Errorf("%w: a name of more than %d bytes", ErrInvalid, maxID)
	}
	names := make(map[string]bool, len(set.GetTensors()))
	for _, s := range set.GetTensors() {
		one, err := describeTensor(s, limits)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", s.GetName(), err)
		}
		if names[one.name] {
			return nil, fmt.Errorf("%w: two tensors are called %q", ErrInvalid, one.name)
		}
		names[one.name] = true
		one.spec.ByteOffset = d.bytes
		d.bytes += (one.bytes + alignment - 1) / alignment * alignment
		if d.bytes > limits.PendingBytes {
			return nil, fmt.Errorf("%w: the set has more than %d bytes", ErrLimit, limits.PendingBytes)
		}
		d.tensors = append(d.tensors, one)
	}
	return d, nil
}

// maxID bounds ids and names in bytes.
const maxID = 4096

func describeTensor(s *streampb.TensorSpec, limits Limits) (described, error) {
	dtype, err := tensor.ParseDType(s.GetDtype())
	if err != nil {
		return described{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	one := described{name: s.GetName(), spec: tensor.Spec{DType: dtype, Shape: tensor.Shape(s.GetShape())}}
	if one.bytes, err = one.spec.ByteLen(); err != nil {
		return described{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if one.bytes > limits.TensorBytes {
		return described{}, fmt.Errorf("%w: %d bytes are more than %d", ErrLimit, one.bytes, limits.TensorBytes)
	}
	return one, nil
}

// equal reports whether two descriptions are of the same tensors.
func (d *description) equal(o *description) bool {
	return d.name == o.name && slices.EqualFunc(d.tensors, o.tensors, func(a, b described) bool {
		return a.name == b.name && a.spec.Equal(b.spec)
	})
}

// stateDict makes the tensors over their memory. It borrows the storage.
func (d *description) stateDict(storage *tensor.Storage) (*module.StateDict, error) {
	sd := module.NewStateDict()
	sd.Metadata = d.metadata
	for _, one := range d.tensors {
		t, err := tensor.New(storage, one.spec)
		if err == nil {
			err = sd.Set(one.name, t)
		}
		if err != nil {
			sd.Close()
			return nil, fmt.Errorf("%w: tensor %q: %w", ErrInvalid, one.name, err)
		}
	}
	return sd, nil
}

// describeSet is what a sender says of a set.
func describeSet(set *Set) *streampb.Set {
	out := &streampb.Set{Id: set.ID, Name: set.Name, Version: set.Version, Metadata: set.Tensors.Metadata}
	for name, t := range set.Tensors.All() {
		out.Tensors = append(out.Tensors, specOf(name, t, nil))
	}
	return out
}

func specOf(name string, t *tensor.Tensor, metadata map[string]string) *streampb.TensorSpec {
	return &streampb.TensorSpec{Name: name, Dtype: t.DType().String(), Shape: t.Shape(), Metadata: metadata}
}

// dataBytes is how many bytes the tensors have.
func (d *description) dataBytes() (bytes int64) {
	for _, one := range d.tensors {
		bytes += one.bytes
	}
	return bytes
}
