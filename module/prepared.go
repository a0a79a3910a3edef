package module

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Prepared is a manifest that was checked, with an index of its names. A state dict over storages is made of it without
// another look at a tensor: what attaching to a model of thousands of tensors costs is paid once, however often a
// program attaches to it, and to its later versions where only their bytes differ. It is safe for concurrent use.
type Prepared struct {
	storages []StorageSpec
	sizes    []int64
	metadata map[string]string
	names    []string
	index    nameIndex
	digests  []*Digest
	views    *tensor.ViewPlan
	used     []uint32 // the storages with tensors, in the order of their first use
}

// Prepare checks all that [Manifest.Validate] does, with its errors. What it returns shares all of m, which must not
// change afterwards.
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

// StateDict makes a state dict over storages that were mapped for the manifest, each of which has to be exactly what it
// says, or the error is [ErrManifest]. It borrows the storages and adds references. Each tensor is made when it is
// first asked for.
func (p *Prepared) StateDict(storages []*tensor.Storage) (*StateDict, error) {
	if err := checkStorages(p.storages, storages); err != nil {
		return nil, err
	}
	views, err := p.views.Over(storages)
	if err != nil {
		return nil, err
	}
	return &StateDict{
		// Clipped, so that what one state dict appends is not another's.
		Metadata: maps.Clone(p.metadata), names: slices.Clip(p.names), index: p.index, views: views, used: p.used, digests: slices.Clip(p.digests),
	}, nil
}
