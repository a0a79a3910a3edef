package module

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Prepared is a validated manifest with an index of its names. State dicts over storages are created from it without
// another validation, so a program that attaches a model repeatedly, or its later versions with the same description,
// pays for thousands of tensors once. It is safe for concurrent use.
type Prepared struct {
	storages []StorageSpec
	metadata map[string]string
	names    []string
	index    nameIndex
	digests  []*Digest
	tensors  []TensorSpec
	used     []uint32 // storages with tensors, in order of first use
	unused   []uint32 // the other storages
}

// Prepare validates the manifest as [Manifest.Validate] does and returns its errors. The result shares all of m, which
// must not change afterwards.
func (m *Manifest) Prepare() (*Prepared, error) {
	p := &Prepared{storages: m.Storages, metadata: m.Metadata, tensors: m.Tensors}
	if err := m.checkSizes(); err != nil {
		return nil, err
	}
	var err error
	if p.names, p.index, err = m.names(); err != nil {
		return nil, err
	}
	p.index.shared = true
	used := make([]bool, len(m.Storages))
	for i := range m.Tensors {
		if err := m.checkTensor(i); err != nil {
			return nil, err
		}
		if s := m.Tensors[i].Storage; !used[s] {
			used[s] = true
			p.used = append(p.used, s)
		}
	}
	for i, inUse := range used {
		if !inUse {
			p.unused = append(p.unused, uint32(i))
		}
	}
	p.digests = m.digests()
	return p, nil
}

// StateDict returns a state dict over storages that were mapped for the manifest. Each must match its description
// exactly, otherwise the error is [ErrManifest]. It borrows the storages and adds references. Tensors are created on
// first use.
func (p *Prepared) StateDict(storages []*tensor.Storage) (*StateDict, error) {
	if err := checkStorages(p.storages, storages); err != nil {
		return nil, err
	}
	extra, err := p.extra(storages)
	if err != nil {
		return nil, err
	}
	views, err := newViews(p.tensors, storages)
	if err != nil {
		closeTensors(extra)
		return nil, err
	}
	return &StateDict{
		extra: extra,
		// Clipped, so that state dicts do not share appended elements.
		Metadata: maps.Clone(p.metadata), names: slices.Clip(p.names), index: p.index, views: views, used: p.used, digests: slices.Clip(p.digests),
	}, nil
}

// extra returns an empty tensor for each storage without tensors, in addition to a reference of the views.
func (p *Prepared) extra(storages []*tensor.Storage) ([]*tensor.Tensor, error) {
	var extra []*tensor.Tensor
	if len(p.unused) == 0 {
		return nil, nil
	}
	seen := map[*tensor.Storage]bool{}
	for _, i := range p.used {
		seen[storages[i]] = true
	}
	for _, i := range p.unused {
		if seen[storages[i]] {
			continue
		}
		seen[storages[i]] = true
		t, err := tensor.New(storages[i], tensor.Spec{DType: tensor.Uint8, Shape: tensor.Shape{0}})
		if err != nil {
			closeTensors(extra)
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
		extra = append(extra, t)
	}
	return extra, nil
}

func closeTensors(tensors []*tensor.Tensor) {
	for _, t := range tensors {
		_ = t.Close() // best effort: an error is returned, and the caller has references
	}
}
