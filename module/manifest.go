package module

import (
	"fmt"
	"maps"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Manifest describes a state dict as a plain value: everything that another process needs besides the storages.
type Manifest struct {
	// Storages describes the storages in the order in which they are passed.
	Storages []StorageSpec
	// Tensors lists the names in order, each a view of a storage.
	Tensors []TensorSpec
	// Metadata is that of the state dict; it may be nil.
	Metadata map[string]string
}

// StorageSpec describes a storage.
type StorageSpec struct {
	// Bytes is its size.
	Bytes int64
	// Device is the device that holds it; zero if unknown.
	Device driver.UUID
	// DeviceType is the kind of that device.
	DeviceType driver.DeviceType
}

// TensorSpec describes a named tensor.
type TensorSpec struct {
	// Name is unique in the manifest, not empty, and UTF-8.
	Name string
	// Storage is an index of Manifest.Storages.
	Storage uint32
	// Spec places the tensor in that storage.
	tensor.Spec
	// Digest is the digest that the publisher claims; nil if it claims none.
	Digest *Digest
}

// Manifest describes the state dict, and returns the storages in the manifest's order, borrowed. The manifest shares
// shapes and strides with the tensors and must not be changed.
func (sd *StateDict) Manifest() (*Manifest, []*tensor.Storage) {
	storages, index := sd.storages()
	m := &Manifest{
		Storages: make([]StorageSpec, len(storages)),
		Tensors:  make([]TensorSpec, len(sd.names)),
		Metadata: maps.Clone(sd.Metadata),
	}
	for i, s := range storages {
		m.Storages[i] = specOf(s)
	}
	for i, name := range sd.names {
		_, spec := sd.place(i)
		m.Tensors[i] = TensorSpec{Name: name, Storage: index[i], Spec: spec}
		if sd.digests != nil {
			m.Tensors[i].Digest = sd.digests[i]
		}
	}
	return m, storages
}

// specOf describes a storage.
func specOf(s *tensor.Storage) StorageSpec {
	info := s.Memory().Device().Info()
	return StorageSpec{Bytes: s.Bytes(), Device: info.UUID, DeviceType: info.Type}
}

// Validate checks that names are unique, not empty and UTF-8, and that every tensor is inside its storage. Errors are
// [ErrName], [ErrDuplicateName], [ErrManifest] and the errors of [tensor.Spec.Validate], wrapped with the tensor.
func (m *Manifest) Validate() error {
	if _, _, err := m.names(); err != nil {
		return err
	}
	if err := m.checkSizes(); err != nil {
		return err
	}
	for i := range m.Tensors {
		if err := m.checkTensor(i); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manifest) checkSizes() error {
	for i, s := range m.Storages {
		if s.Bytes < 0 {
			return fmt.Errorf("%w: storage %d has %d bytes", ErrManifest, i, s.Bytes)
		}
	}
	return nil
}

// checkTensor checks that a tensor is inside its storage.
func (m *Manifest) checkTensor(i int) error {
	t := &m.Tensors[i]
	if int64(t.Storage) >= int64(len(m.Storages)) {
		return fmt.Errorf("tensor %s: %w: storage %d of %d", quote(t.Name), ErrManifest, t.Storage, len(m.Storages))
	}
	if err := t.Spec.Validate(m.Storages[t.Storage].Bytes); err != nil {
		return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
	}
	return nil
}

// names checks the names and returns them with their index.
func (m *Manifest) names() ([]string, nameIndex, error) {
	names := make([]string, len(m.Tensors))
	for i := range m.Tensors {
		names[i] = m.Tensors[i].Name
		if err := checkName(names[i]); err != nil {
			return nil, nameIndex{}, fmt.Errorf("tensor %d: %w", i, err)
		}
	}
	index, twice := indexNames(names)
	if twice >= 0 {
		return nil, nameIndex{}, fmt.Errorf("%w: %s", ErrDuplicateName, quote(names[twice]))
	}
	return names, index, nil
}

// FromManifest returns a state dict over storages that were mapped for m. m is not trusted: it is validated, and each
// storage must match its description exactly. FromManifest borrows the storages and adds references. The state dict
// shares all of m, which must not change afterwards. Tensors are created on first use. It returns the errors of
// Validate. For many state dicts of one manifest use [Manifest.Prepare].
func FromManifest(m *Manifest, storages []*tensor.Storage) (*StateDict, error) {
	if err := checkStorages(m.Storages, storages); err != nil {
		return nil, err
	}
	p, err := m.Prepare()
	if err != nil {
		return nil, err
	}
	return p.StateDict(storages)
}

// digests returns the tensors' digests in order; nil if no tensor has one.
func (m *Manifest) digests() []*Digest {
	var digests []*Digest
	for i := range m.Tensors {
		digest := m.Tensors[i].Digest
		if digest != nil && digests == nil {
			digests = make([]*Digest, len(m.Tensors))
		}
		if digests != nil {
			digests[i] = digest
		}
	}
	return digests
}

// checkStorages compares storages with their descriptions.
func checkStorages(want []StorageSpec, storages []*tensor.Storage) error {
	if len(storages) != len(want) {
		return fmt.Errorf("%w: it has %d storages, %d came with it", ErrManifest, len(want), len(storages))
	}
	for i, s := range storages {
		if err := want[i].check(s); err != nil {
			return fmt.Errorf("storage %d: %w", i, err)
		}
	}
	return nil
}

// check compares a storage with its description.
func (want StorageSpec) check(s *tensor.Storage) error {
	got := specOf(s)
	switch {
	case got.Bytes != want.Bytes:
		return fmt.Errorf("%w: it has %d bytes, not %d", ErrManifest, got.Bytes, want.Bytes)
	case got.DeviceType != want.DeviceType:
		return fmt.Errorf("%w: it is memory of a %v, not %v", ErrManifest, got.DeviceType, want.DeviceType)
	case got.Device != want.Device && !want.Device.IsZero():
		return fmt.Errorf("%w: it is on device %v, not %v", ErrManifest, got.Device, want.Device)
	}
	return nil
}
