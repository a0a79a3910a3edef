package jsonrpc

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

// maxDigests bounds how many digests are remembered. One that was forgotten is computed again.
const maxDigests = 1 << 16

// digestKey is what a digest is of: a version never changes.
type digestKey struct {
	server, name string
	version      uint64
	part         string // a tensor's name behind "tensor ", or "file"
}

// digestCache remembers the digests of what was asked for. Whoever asks first pays for reading the bytes once; whoever
// asks meanwhile waits.
type digestCache struct {
	mu    sync.Mutex
	known map[digestKey]*digestEntry
}

type digestEntry struct {
	done   chan struct{}
	digest string
	err    error
}

// get is the digest of key, computed by read of the content where nobody knows it. A caller that leaves leaves the
// others waiting for nothing: the next one computes.
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

// finish computes a digest and tells those who wait. A failure is not remembered.
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

// digestOf reads the whole content, in hexadecimal, and leaves it at its beginning.
func digestOf(ctx context.Context, source *content) (string, error) {
	h := sha256.New()
	left := source.size
	for left > 0 {
		if ctx.Err() != nil {
			return "", context.Canceled
		}
		n, err := source.send(h, min(left, 16*pieceBytes), func() {})
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

// base64OfHex writes a digest as HTTP's fields have it.
func base64OfHex(text string) string {
	b, err := hex.DecodeString(text)
	if err != nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(b)
}

// keyOf is the key of a part of an acquired version.
func keyOf(h *endpoint.Handle, part string) digestKey {
	return digestKey{h.ServerID(), h.Name(), h.Version(), part}
}
