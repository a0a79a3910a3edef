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

// base is a version in this host's memory. Data that the next version shares with it is copied.
type base struct {
	closer   func() error // closes the memory
	digest   module.Digest
	tensors  int
	bytes    int64
	metadata map[string]string
	byDigest map[module.Digest][]byte // tensors with known digests
	byName   map[string]heldTensor
	offer    *offer          // offers it to other mirrors; nil if there is no offer
	lease    *lease          // holds the same version at the source; nil if there is no lease
	server   string          // ID of this host's owner
	version  uint64          // version at this host's owner
	address  string          // address with the revision from which it was made
	files    map[string]bool // identities of the files from which it was made; nil if it was not made from files
}

// heldTensor is a tensor of the base.
type heldTensor struct {
	data   []byte
	digest module.Digest // zero if unknown
}

// newBase returns a base with the tensors of a state dict, which must stay open until closer is called. Tensors that
// the CPU cannot address are omitted.
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

// digestText returns the digest in hexadecimal; empty if it is unknown.
func (b *base) digestText() string {
	if b.digest == (module.Digest{}) {
		return ""
	}
	return b.digest.String()
}

// is reports whether the base equals the model that the manifest describes.
func (b *base) is(m *manifest) bool {
	return b.digest == m.digest() && maps.Equal(b.metadata, m.metadata)
}

// offered returns all tensors in the form that is offered to other mirrors.
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

// close releases the memory and the lease. Closing nil does nothing.
func (b *base) close() error {
	if b == nil {
		return nil
	}
	b.lease.end()
	b.offer.close()
	return b.closer()
}

// baseOfOwner returns the owner's newest version of the name; nil if there is none. If digested is set, it reads all
// bytes once to compute their digests.
func baseOfOwner(ctx context.Context, owner *endpoint.Client, name string, digested bool) (*base, error) {
	h, err := owner.Acquire(ctx, name, endpoint.AcquireOptions{})
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
	for _, group := range sd.Aliases() { // tied names share their bytes
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
