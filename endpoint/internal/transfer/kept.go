package transfer

import (
	"time"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Kept holds memory of one client that its server keeps mapped between calls, by the client's numbers. Mapping memory,
// touching its pages and unmapping it takes longer than the rest of a call. The server trusts the client that a number
// identifies the same memory as before, but takes size and kind from its own mapping. A client that names memory that is
// not kept gets an error and sends the memory again. The zero value keeps nothing until Allow is called. It is safe for
// concurrent use.
type Kept struct{ mappings[*keptStorage] }

type keptStorage struct {
	mapping
	storage *tensor.Storage // a separate reference
}

func (e *keptStorage) release() { e.storage.Close() }

// Allow sets the maximum of bytes to keep, and the limit shared by all clients.
func (k *Kept) Allow(bytes int64, total *MappingTotal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.most, k.total, k.unlock = bytes, total, k.mu.Unlock
}

// Get returns the memory that a handle names, or nil if it is not kept. The caller releases its reference.
func (k *Kept) Get(h message.Handle) *tensor.Storage {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.byNumber[h.Storage]
	if e == nil || uint64(e.bytes) != h.Bytes {
		return nil
	}
	e.used = time.Now()
	return e.storage.Retain()
}

// Put keeps the memory of a handle and evicts the least recently used storages if needed. It borrows s and adds a
// reference.
func (k *Kept) Put(h message.Handle, s *tensor.Storage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.most <= 0 || s.Bytes() > k.most {
		return
	}
	if old := k.byNumber[h.Storage]; old != nil {
		k.removeLocked(old)
	}
	if !k.reserveLocked(s.Bytes()) {
		return
	}
	e := &keptStorage{mapping{number: h.Storage, bytes: s.Bytes()}, s.Retain()}
	k.addLocked(e)
	k.idleLocked(e)
}

// Close unmaps everything. Later calls of Put have no effect.
func (k *Kept) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closeLocked()
	for _, e := range k.byNumber {
		k.removeLocked(e)
	}
}
