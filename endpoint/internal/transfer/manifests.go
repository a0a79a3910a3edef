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
	// knownManifests is how many manifests a client keeps decoded.
	knownManifests = 8
	// knownManifestBytes is how many bytes they may have in all, encoded; decoded they take some four times as much.
	knownManifestBytes = 2 << 20
)

// Manifests are those that a client has decoded and checked last. The versions of a model differ in their bytes, most
// often not in their manifests, so that only the first of them costs time for each of its tensors. A manifest is known
// by all of its bytes, whoever sent them: nothing is believed because it was believed before of others. The zero value
// knows none. It is safe for concurrent use.
type Manifests struct {
	mu    sync.Mutex
	known []knownManifest // the one used last at the end
	bytes int
}

type knownManifest struct {
	hash     uint64
	encoded  []byte
	prepared *module.Prepared
}

// manifestSeed keeps peers from making many manifests of one hash.
var manifestSeed = maphash.MakeSeed()

// Prepare decodes and checks a manifest, or returns it as it was when the same bytes came before. It borrows encoded.
// Errors are those of [codec.PrepareManifest] and [message.Unmarshal].
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
	if err == nil && len(encoded) <= knownManifestBytes {
		k.add(knownManifest{hash, bytes.Clone(encoded), p})
	}
	return p, err
}

// find returns the manifest of these bytes, or nil.
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

// add keeps a manifest, which another goroutine may have added meanwhile, and drops those used the longest time ago.
func (k *Manifests) add(m knownManifest) {
	if k.find(m.hash, m.encoded) != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = append(k.known, m)
	k.bytes += len(m.encoded)
	for len(k.known) > knownManifests || k.bytes > knownManifestBytes {
		k.bytes -= len(k.known[0].encoded)
		k.known = slices.Delete(k.known, 0, 1)
	}
}
