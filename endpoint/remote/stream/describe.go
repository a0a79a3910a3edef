package stream

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// description is the validated description of a set by its sender.
type description struct {
	id, name string
	version  uint64
	metadata map[string]string
	tensors  []described
	bytes    int64 // memory needed for all tensors
	digest   [sha256.Size]byte
}

// described is one tensor of a set, at an offset in the common memory.
type described struct {
	name  string
	spec  tensor.Spec
	bytes int64
}

// alignment is the alignment of tensors in the common memory.
const alignment = 256

// describe validates a peer's description of a set. It allocates nothing of the claimed size.
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
	d.digest = d.sum()
	return d, nil
}

// sum returns a digest that is equal for equal descriptions, regardless of their ids.
func (d *description) sum() (digest [sha256.Size]byte) {
	h := sha256.New()
	text := func(s string) {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(s))) // never fails for a hash
		_, _ = io.WriteString(h, s)
	}
	text(d.name)
	_ = binary.Write(h, binary.LittleEndian, uint64(len(d.tensors)))
	for _, one := range d.tensors {
		text(one.name)
		text(one.spec.DType.String())
		_ = binary.Write(h, binary.LittleEndian, uint64(len(one.spec.Shape)))
		_ = binary.Write(h, binary.LittleEndian, []int64(one.spec.Shape))
	}
	for _, key := range slices.Sorted(maps.Keys(d.metadata)) {
		text(key)
		text(d.metadata[key])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// maxID limits the length of ids and names, in bytes.
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

// equal reports whether two descriptions have the same name, tensors and metadata.
func (d *description) equal(o *description) bool { return d.digest == o.digest }

// stateDict makes the tensors over their memory. It borrows storage.
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

// describeSet returns the description that a sender sends.
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

// dataBytes returns the total size of the tensors.
func (d *description) dataBytes() (bytes int64) {
	for _, one := range d.tensors {
		bytes += one.bytes
	}
	return bytes
}
