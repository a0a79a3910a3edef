package transfer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// KeptStorages is how many storages of one client a server keeps mapped between calls.
	KeptStorages = 64
	// keptTime is how long it keeps one that no call names. The client learns that it is gone when it names it, and
	// sends the memory again.
	keptTime = 3 * time.Second
)

// Kept is the memory of one client that its server keeps mapped between calls, by the client's numbers: to map memory,
// touch its pages and unmap it takes longer than all else in a call. It is the client's word that a number stands for
// the same memory as before; what the memory is, the mapping knows. The zero value keeps nothing, and nothing with more
// than no bytes. It is safe for concurrent use.
type Kept struct {
	mu     sync.Mutex
	by     map[uint64]*keptStorage
	bytes  int64
	most   int64
	total  *KeptTotal
	sweep  *time.Timer // while something is kept
	closed bool
}

type keptStorage struct {
	storage *tensor.Storage // a reference of its own
	used    time.Time
}

// KeptTotal bounds how many storages are kept of all clients together: each takes a descriptor.
type KeptTotal struct {
	Most int64 // how many there may be
	used atomic.Int64
}

// Used is how many are kept.
func (t *KeptTotal) Used() int64 { return t.used.Load() }

// take makes room for one more, if there is any.
func (t *KeptTotal) take() bool {
	if t.used.Add(1) > t.Most {
		t.used.Add(-1)
		return false
	}
	return true
}

// Allow sets how many bytes may be kept, and what bounds the storages of all clients.
func (k *Kept) Allow(bytes int64, total *KeptTotal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.most, k.total = bytes, total
}

// Get returns the memory that a handle names, with a reference that the caller gives back; nil where it is not kept.
func (k *Kept) Get(h message.Handle) *tensor.Storage {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.by[h.Storage]
	if e == nil || uint64(e.storage.Bytes()) != h.Bytes {
		return nil
	}
	e.used = time.Now()
	return e.storage.Retain()
}

// Put keeps the memory that came with a handle. It borrows the storage and adds a reference. What was used the longest
// time ago gives way.
func (k *Kept) Put(h message.Handle, s *tensor.Storage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.most <= 0 || s.Bytes() > k.most {
		return
	}
	k.dropLocked(h.Storage)
	for len(k.by) >= KeptStorages || k.bytes > k.most-s.Bytes() {
		k.dropLocked(k.oldestLocked())
	}
	if !k.total.take() {
		return
	}
	if k.by == nil {
		k.by = map[uint64]*keptStorage{}
	}
	k.by[h.Storage] = &keptStorage{s.Retain(), time.Now()}
	k.bytes += s.Bytes()
	if k.sweep == nil {
		k.sweep = time.AfterFunc(keptTime, k.dropUnused)
	}
}

func (k *Kept) oldestLocked() (oldest uint64) {
	var since time.Time
	for number, e := range k.by {
		if since.IsZero() || e.used.Before(since) {
			oldest, since = number, e.used
		}
	}
	return oldest
}

func (k *Kept) dropLocked(number uint64) {
	if e := k.by[number]; e != nil {
		delete(k.by, number)
		k.bytes -= e.storage.Bytes()
		k.total.used.Add(-1)
		e.storage.Close()
	}
}

// dropUnused drops what no call has named for a while.
func (k *Kept) dropUnused() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for number, e := range k.by {
		if now.Sub(e.used) >= keptTime {
			k.dropLocked(number)
		}
	}
	if len(k.by) == 0 {
		k.sweep = nil
		return
	}
	k.sweep.Reset(keptTime - now.Sub(k.by[k.oldestLocked()].used))
}

// Use is how much is kept.
func (k *Kept) Use() (storages int, bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.by), k.bytes
}

// Close drops everything, for good.
func (k *Kept) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for number := range k.by {
		k.dropLocked(number)
	}
	if k.sweep != nil {
		k.sweep.Stop()
	}
}
