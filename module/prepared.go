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
	sizes    []int64
	metadata map[string]string
	names    []string
	index    nameIndex
	digests  []*Digest
	views    *tensor.ViewPlan
	used     []uint32 // storages with tensors, in order of first use
}

// Prepare validates the manifest as [Manifest.Validate] does and returns its errors. The result shares all of m, which
// must not change afterwards.
func (m *Manifest) Prepare() (*Prepared, error) {
	p := &Prepared{storages: m.Storages, metadata: m.Metadata, sizes: make([]int64, len(m.Storages))}
	for i, s := range m.Storages {
		if s.Bytes < 0 {
			return nil, fmt.Errorf("%w: storage %d has %d bytes", ErrManifest, i, s.Bytes)
		}
		p.sizes[i] = s.Bytes
	}
	var err error
	if p.names, p.index, err = m.names(); err != nil {
		return nil, err
	}
	p.index.shared = true
	used := make([]bool, len(m.Storages))
	p.views, err = tensor.PlanViews(p.sizes, len(m.Tensors), func(i int) (uint32, *tensor.Spec) {
		t := &m.Tensors[i]
		return t.Storage, &t.Spec
	})
	if err != nil {
		return nil, m.nameError(err)
	}
	for i := range m.Tensors {
		if s := m.Tensors[i].Storage; !used[s] {
			used[s] = true
			p.used = append(p.used, s)
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
	views, err := p.views.Over(storages)
	if err != nil {
		return nil, err
	}
	return &StateDict{
		// Clipped, so that state dicts do not share appended elements.
		Metadata: maps.Clone(p.metadata), names: slices.Clip(p.names), index: p.index, views: views, used: p.used, digests: slices.Clip(p.digests),
	}, nil
}
