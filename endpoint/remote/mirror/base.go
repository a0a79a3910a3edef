package mirror

import (
	"context"
	"errors"
	"maps"
	"runtime"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// base is a version in this host's memory. Data that the next version shares with it is copied.
type base struct {
	closer   func() error // closes the memory
	sd       *module.StateDict
	manifest *modelwire.Manifest
	byDigest map[modelwire.Digest][]byte // tensors with known digests
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
	data []byte
	sums modelwire.TensorSums // zero if unknown
}

// newBase returns a base with the tensors of a state dict, which must stay open until closer is called. Tensors that
// the CPU cannot address are omitted.
func newBase(sd *module.StateDict, m *modelwire.Manifest, closer func() error) *base {
	b := &base{closer: closer, sd: sd, manifest: m}
	b.index()
	return b
}

// index finds the data of all tensors.
func (b *base) index() {
	b.byName, b.byDigest = map[string]heldTensor{}, map[modelwire.Digest][]byte{}
	for i := range b.manifest.Tensors {
		one := &b.manifest.Tensors[i]
		t, found := b.sd.Get(one.Name)
		if !found || one.Bytes == 0 {
			continue
		}
		data, err := tensor.RawData(t)
		if err != nil {
			continue
		}
		held := heldTensor{data: data[:one.Bytes]}
		if b.manifest.Digested {
			held.sums = one.TensorSums
			b.byDigest[one.Digest] = held.data
		}
		b.byName[one.Name] = held
	}
}

// digest returns the digest of the model; zero if it is unknown.
func (b *base) digest() modelwire.Digest {
	if !b.manifest.Digested {
		return modelwire.Digest{}
	}
	return b.manifest.Digest()
}

// is reports whether the base equals the model that the manifest describes.
func (b *base) is(m *modelwire.Manifest) bool {
	return b.digest() == m.Digest() && maps.Equal(b.manifest.Metadata, m.Metadata)
}

// have returns memory that contains the bytes with that digest; nil if there is none.
func (b *base) have(d modelwire.Digest) []byte {
	if b == nil {
		return nil
	}
	return b.byDigest[d]
}

// digestWith ensures that the digests of a hash function are known. It computes the digests that known does not have.
func (b *base) digestWith(ctx context.Context, h modelwire.Hash, known *modelwire.Digests) error {
	if b.manifest.Digested && b.manifest.Hash == h {
		return nil
	}
	m := *b.manifest
	m.Tensors = append([]modelwire.Entry(nil), m.Tensors...)
	m.Hash = h
	at := modelwire.Version{ServerID: b.server, Name: m.Name, Version: b.version}
	err := modelwire.Parallel(ctx, runtime.GOMAXPROCS(0), len(m.Tensors), func(ctx context.Context, i int) error {
		one := &m.Tensors[i]
		t, found := b.sd.Get(one.Name)
		if !found || one.TiedTo != "" {
			return nil
		}
		source, err := modelwire.TensorContent(t)
		if err == nil {
			one.TensorSums, err = known.Tensor(ctx, h, at, one.Name, source)
		}
		return err
	})
	if err != nil {
		return err
	}
	m.TieDigests()
	b.manifest = &m
	b.index()
	return nil
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

// baseOfOwner returns the owner's newest version of the name; nil if there is none.
func baseOfOwner(ctx context.Context, owner *endpoint.Client, name string) (*base, error) {
	h, err := owner.Acquire(ctx, name, endpoint.AcquireOptions{})
	if errors.Is(err, endpoint.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	published, err := owner.Manifest(ctx, name, h.Version())
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	m, err := modelwire.ManifestOf(name, h.Version(), h.ServerID(), published)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	b := newBase(h.StateDict(), m, h.Close)
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
