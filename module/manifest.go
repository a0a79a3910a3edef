package module

import (
	"errors"
	"fmt"
	"maps"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Manifest describes a state dict as a plain value: what another process needs besides the storages themselves.
type Manifest struct {
	// Storages are the storages, in the order in which they are handed over.
	Storages []StorageSpec
	// Tensors are the names in order, each a view of a storage.
	Tensors []TensorSpec
	// Metadata is the state dict's; it may be nil.
	Metadata map[string]string
}

// StorageSpec describes a storage.
type StorageSpec struct {
	// Bytes is its size.
	Bytes int64
	// Device is the device that holds it; zero where that is not known.
	Device driver.UUID
	// DeviceType is the kind of that device.
	DeviceType driver.DeviceType
}

// TensorSpec describes a named tensor.
type TensorSpec struct {
	// Name is unique in the manifest, not empty, and UTF-8.
	Name string
	// Storage is a position in Manifest.Storages.
	Storage uint32
	// Spec places the tensor in that storage.
	tensor.Spec
	// Digest is what the publisher says that the tensor's digest is; nil where it says none.
	Digest *Digest
}

// Manifest describes the state dict, and returns the storages in the manifest's order, borrowed. The manifest shares
// shapes and strides with the tensors and is valid for as long as nobody changes those.
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

// Validate checks the manifest by itself: names are unique, not empty and UTF-8, and every tensor lies inside the
// storage that it names. Errors are [ErrName], [ErrDuplicateName], [ErrManifest] and those of [tensor.Spec.Validate],
// and name the tensor.
func (m *Manifest) Validate() error {
	if _, _, err := m.names(); err != nil {
		return err
	}
	for i, s := range m.Storages {
		if s.Bytes < 0 {
			return fmt.Errorf("%w: storage %d has %d bytes", ErrManifest, i, s.Bytes)
		}
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if int64(t.Storage) >= int64(len(m.Storages)) {
			return fmt.Errorf("tensor %s: %w: storage %d of %d", quote(t.Name), ErrManifest, t.Storage, len(m.Storages))
		}
		if err := t.Spec.Validate(m.Storages[t.Storage].Bytes); err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
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

// FromManifest makes a state dict over storages that were mapped for m, which is not trusted: everything that Validate
// checks is checked, and each storage has to be exactly what m says it is. It borrows the storages and adds references;
// the state dict shares all of m, which must not change afterwards. Each tensor is made when it is first asked for.
// Errors are those of Validate. What many state dicts are made of is checked once with [Manifest.Prepare].
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

// digests returns the tensors' digests in their order; nil where no tensor has one.
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

// checkStorages holds storages against what a manifest says of them.
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

// check holds a storage against what the manifest says of it.
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

// nameError puts the tensor's name in the place of its number.
func (m *Manifest) nameError(err error) error {
	var which *tensor.ViewsError
	if !errors.As(err, &which) {
		return err
	}
	err = which.Err
	if errors.Is(err, tensor.ErrIndex) {
		err = fmt.Errorf("%w: %w", ErrManifest, err)
	}
	return fmt.Errorf("tensor %s: %w", quote(m.Tensors[which.Index].Name), err)
}
