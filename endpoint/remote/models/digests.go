package models

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// maxDigests limits the number of cached digests. An evicted digest is computed again when it is requested.
const maxDigests = 1 << 16

// digestKey identifies the content of a digest. Versions are immutable, so an entry never becomes stale.
type digestKey struct {
	server, name string
	version      uint64
	part         string // "tensor " followed by the tensor's name, or "file"
}

// digestCache caches the digests that were requested. The first request reads the bytes; concurrent requests wait for
// it.
type digestCache struct {
	mu    sync.Mutex
	known map[digestKey]*digestEntry
}

type digestEntry struct {
	done   chan struct{}
	digest string
	err    error
}

// get returns the digest of key. If it is not cached, get computes it by reading source. If the computing caller's
// context ends, a waiting caller computes the digest instead.
func (d *digestCache) get(ctx context.Context, key digestKey, source *content) (string, error) {
	for {
		d.mu.Lock()
		entry := d.known[key]
		if entry == nil {
			entry = d.beginLocked(key)
			d.mu.Unlock()
			d.finish(ctx, key, entry, source)
			return entry.digest, entry.err
		}
		d.mu.Unlock()
		select {
		case <-entry.done:
			if entry.err == nil || !errors.Is(entry.err, context.Canceled) {
				return entry.digest, entry.err
			}
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func (d *digestCache) beginLocked(key digestKey) *digestEntry {
	if d.known == nil || len(d.known) >= maxDigests {
		d.known = map[digestKey]*digestEntry{}
	}
	entry := &digestEntry{done: make(chan struct{})}
	d.known[key] = entry
	return entry
}

// finish computes a digest and wakes the waiters. Failures are not cached.
func (d *digestCache) finish(ctx context.Context, key digestKey, entry *digestEntry, source *content) {
	entry.digest, entry.err = digestOf(ctx, source)
	if entry.err != nil {
		d.mu.Lock()
		if d.known[key] == entry {
			delete(d.known, key)
		}
		d.mu.Unlock()
	}
	close(entry.done)
}

// digestOf reads the whole content, rewinds it and returns its SHA-256 in hexadecimal.
func digestOf(ctx context.Context, source *content) (string, error) {
	h := sha256.New()
	left := source.size
	for left > 0 {
		if ctx.Err() != nil {
			return "", context.Canceled
		}
		n, err := source.send(h, min(left, 16*pieceBytes))
		if err != nil {
			return "", err
		}
		if n == 0 {
			return "", io.ErrUnexpectedEOF
		}
		left -= n
	}
	_, err := source.Seek(0, io.SeekStart)
	return hex.EncodeToString(h.Sum(nil)), err
}

// base64OfHex converts a hexadecimal digest to base64, as HTTP digest fields require.
func base64OfHex(text string) string {
	b, err := hex.DecodeString(text)
	if err != nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(b)
}

// keyOf returns the key for a part of an acquired version.
func keyOf(h *endpoint.Handle, part string) digestKey {
	return digestKey{h.ServerID(), h.Name(), h.Version(), part}
}
