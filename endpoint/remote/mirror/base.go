package mirror

import (
	"context"
	"errors"
	"maps"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// base is a version that is here: what the next one has in common with it is copied from it.
type base struct {
	closer   func() error // of the memory
	digest   module.Digest
	metadata map[string]string
	byDigest map[module.Digest][]byte
	byName   map[string]module.Digest
	lease    *lease // of the same version at the source; nil where there is none
	server   string // of the owner here
	version  uint64 // there
}

// newBase is a base over the tensors of a state dict, which stays open until closer is called. Tensors whose bytes the
// processor does not address are left out.
func newBase(sd *module.StateDict, m *manifest, closer func() error) *base {
	b := &base{
		closer: closer, digest: m.digest(), metadata: m.metadata, byDigest: map[module.Digest][]byte{}, byName: map[string]module.Digest{},
	}
	for i := range m.tensors {
		one := &m.tensors[i]
		t, found := sd.Get(one.Name)
		if !found {
			continue
		}
		if data, err := tensor.RawData(t); err == nil && one.bytes > 0 {
			b.byDigest[one.digest] = data[:one.bytes]
			b.byName[one.Name] = one.digest
		}
	}
	return b
}

// is reports whether the base is just what the manifest describes.
func (b *base) is(m *manifest) bool {
	return b.digest == m.digest() && maps.Equal(b.metadata, m.metadata)
}

// close gives the memory and the lease back. Closing nil does nothing.
func (b *base) close(s *source) error {
	if b == nil {
		return nil
	}
	b.lease.end(s)
	return b.closer()
}

// baseOfOwner is the newest version that the owner has under the name; nil where it has none. Its bytes are read once,
// for their digests.
func baseOfOwner(ctx context.Context, owner *endpoint.Client, name string) (*base, error) {
	h, err := owner.Acquire(ctx, name)
	if errors.Is(err, endpoint.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sd := h.StateDict()
	digests, err := module.Digests(ctx, sd, 0)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	m := &manifest{metadata: sd.Metadata}
	for name, t := range sd.All() {
		m.tensors = append(m.tensors, tensorEntry{module.NamedSpec{Name: name, DType: t.DType(), Shape: t.Shape()}, t.Bytes(), digests[name]})
	}
	b := newBase(sd, m, h.Close)
	b.server, b.version = h.ServerID(), h.Version()
	return b, nil
}
