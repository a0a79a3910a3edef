package mirror

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// base is a version that is here: what the next one has in common with it is copied from it.
type base struct {
	closer   func() error // of the memory
	digest   module.Digest
	tensors  int
	bytes    int64
	metadata map[string]string
	byDigest map[module.Digest][]byte // of tensors whose digest is known
	byName   map[string]heldTensor
	offer    *offer          // of it to other mirrors; nil where there is none
	lease    *lease          // of the same version at the source; nil where there is none
	server   string          // of the owner here
	version  uint64          // there
	address  string          // of what it was made of, with its revision
	files    map[string]bool // identities of the files that it was made of; nil where it was made of none
}

// heldTensor is a tensor that is here.
type heldTensor struct {
	data   []byte
	digest module.Digest // zero where it is not known
}

// newBase is a base over the tensors of a state dict, which stays open until closer is called. Tensors whose bytes the
// processor does not address are left out.
func newBase(sd *module.StateDict, m *manifest, closer func() error) *base {
	b := &base{
		closer: closer, tensors: len(m.tensors), bytes: m.bytes, metadata: m.metadata, byDigest: map[module.Digest][]byte{}, byName: map[string]heldTensor{},
	}
	if m.digested {
		b.digest = m.digest()
	}
	for i := range m.tensors {
		one := &m.tensors[i]
		t, found := sd.Get(one.Name)
		if !found {
			continue
		}
		if data, err := tensor.RawData(t); err == nil && one.bytes > 0 {
			b.byName[one.Name] = heldTensor{data[:one.bytes], one.digest}
			if m.digested {
				b.byDigest[one.digest] = data[:one.bytes]
			}
		}
	}
	return b
}

// digestText is the digest in hexadecimal; empty where it is not known.
func (b *base) digestText() string {
	if b.digest == (module.Digest{}) {
		return ""
	}
	return b.digest.String()
}

// is reports whether the base is just what the manifest describes.
func (b *base) is(m *manifest) bool {
	return b.digest == m.digest() && maps.Equal(b.metadata, m.metadata)
}

// offered is the whole of it for other mirrors.
func (b *base) offered() (map[module.Digest]*offeredTensor, *atomic.Int64) {
	tensors, done := map[module.Digest]*offeredTensor{}, &atomic.Int64{}
	for digest, data := range b.byDigest {
		here := newArrivals(int64(len(data)), int64(len(data)))
		here.add(0, int64(len(data)))
		tensors[digest] = &offeredTensor{data, here}
	}
	done.Store(b.bytes)
	return tensors, done
}

// close gives the memory and the lease back. Closing nil does nothing.
func (b *base) close() error {
	if b == nil {
		return nil
	}
	b.lease.end()
	b.offer.close()
	return b.closer()
}

// baseOfOwner is the newest version that the owner has under the name; nil where it has none. Its bytes are read once
// where their digests are wanted.
func baseOfOwner(ctx context.Context, owner *endpoint.Client, name string, digested bool) (*base, error) {
	h, err := owner.Acquire(ctx, name)
	if errors.Is(err, endpoint.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sd := h.StateDict()
	var digests map[string]module.Digest
	if digested {
		if digests, err = module.Digests(ctx, sd, 0); err != nil {
			return nil, errors.Join(err, h.Close())
		}
	}
	m := &manifest{metadata: sd.Metadata, digested: digested}
	for name, t := range sd.All() {
		m.tensors = append(m.tensors, tensorEntry{module.NamedSpec{Name: name, DType: t.DType(), Shape: t.Shape()}, t.Bytes(), digests[name]})
		m.bytes += t.Bytes()
	}
	for _, group := range sd.Aliases() { // tied names have their bytes once
		t, _ := sd.Get(group[0])
		m.bytes -= int64(len(group)-1) * t.Bytes()
	}
	b := newBase(sd, m, h.Close)
	b.server, b.version = h.ServerID(), h.Version()
	info, err := owner.Info(ctx, name)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	for _, v := range info.Versions {
		if v.Version == b.version {
			b.address = v.Source
		}
	}
	return b, nil
}
