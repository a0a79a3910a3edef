package transfer

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// maxManifests is the maximum number of manifests that a client keeps decoded.
	maxManifests = 8
	// maxManifestBytes is the maximum total of their encoded sizes. Decoded, they take about four times as much.
	maxManifestBytes = 2 << 20
)

// Manifests caches the manifests that a client decoded and validated last. The versions of a model usually have equal
// manifests, so validation costs time only for the first one. A cached manifest is used only if all bytes are equal.
// The zero value is empty. It is safe for concurrent use.
type Manifests struct {
	mu    sync.Mutex
	known []knownManifest // the most recently used is last
	bytes int
}

type knownManifest struct {
	hash     uint64
	encoded  []byte
	prepared *module.Prepared
}

// manifestSeed is random so that peers cannot construct hash collisions.
var manifestSeed = maphash.MakeSeed()

// Prepare decodes and validates a manifest, or returns the cached one for equal bytes. It borrows encoded. It returns
// the errors of [codec.PrepareManifest] and [message.Unmarshal].
func (k *Manifests) Prepare(encoded []byte) (*module.Prepared, error) {
	hash := maphash.Bytes(manifestSeed, encoded)
	if p := k.find(hash, encoded); p != nil {
		return p, nil
	}
	var columns message.Manifest
	if err := message.Unmarshal(encoded, &columns); err != nil {
		return nil, err
	}
	p, err := codec.PrepareManifest(&columns)
	if err == nil && len(encoded) <= maxManifestBytes {
		k.add(knownManifest{hash, bytes.Clone(encoded), p})
	}
	return p, err
}

// find returns the cached manifest for these bytes, or nil.
func (k *Manifests) find(hash uint64, encoded []byte) *module.Prepared {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, m := range slices.Backward(k.known) {
		if m.hash == hash && bytes.Equal(m.encoded, encoded) {
			k.known = append(slices.Delete(k.known, i, i+1), m)
			return m.prepared
		}
	}
	return nil
}

// add caches a manifest, unless another goroutine has done so, and evicts the least recently used ones.
func (k *Manifests) add(m knownManifest) {
	if k.find(m.hash, m.encoded) != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = append(k.known, m)
	k.bytes += len(m.encoded)
	for len(k.known) > maxManifests || k.bytes > maxManifestBytes {
		k.bytes -= len(k.known[0].encoded)
		k.known = slices.Delete(k.known, 0, 1)
	}
}
