package transfer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// KeptStorages is the maximum number of storages of one client that a server keeps mapped between calls.
	KeptStorages = 64
	// keptTime is the time after which an unused storage is unmapped. A client that names it later gets an error and
	// sends the memory again.
	keptTime = 3 * time.Second
)

// Kept holds memory of one client that its server keeps mapped between calls, by the client's numbers. Mapping memory,
// touching its pages and unmapping it takes longer than the rest of a call. The server trusts the client that a number
// identifies the same memory as before, but takes size and kind from its own mapping. The zero value keeps nothing
// until Allow is called. It is safe for concurrent use.
type Kept struct {
	mu       sync.Mutex
	byNumber map[uint64]*keptStorage
	bytes    int64
	most     int64
	total    *KeptTotal
	sweep    *time.Timer // runs while anything is kept
	closed   bool
}

type keptStorage struct {
	storage *tensor.Storage // a separate reference
	used    time.Time
}

// KeptTotal limits the number of kept storages of all clients, because each uses a descriptor.
type KeptTotal struct {
	Most int64 // maximum number of storages
	used atomic.Int64
}

// Used returns the number of kept storages.
func (t *KeptTotal) Used() int64 { return t.used.Load() }

// reserve reserves a place for one storage and returns false if the limit is reached.
func (t *KeptTotal) reserve() bool {
	if t.used.Add(1) > t.Most {
		t.used.Add(-1)
		return false
	}
	return true
}

// Allow sets the maximum of bytes to keep, and the limit shared by all clients.
func (k *Kept) Allow(bytes int64, total *KeptTotal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.most, k.total = bytes, total
}

// Get returns the memory that a handle names, or nil if it is not kept. The caller releases its reference.
func (k *Kept) Get(h message.Handle) *tensor.Storage {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.byNumber[h.Storage]
	if e == nil || uint64(e.storage.Bytes()) != h.Bytes {
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
	k.dropLocked(h.Storage)
	for len(k.byNumber) >= KeptStorages || k.bytes > k.most-s.Bytes() {
		k.dropLocked(k.leastRecentLocked())
	}
	if !k.total.reserve() {
		return
	}
	if k.byNumber == nil {
		k.byNumber = map[uint64]*keptStorage{}
	}
	k.byNumber[h.Storage] = &keptStorage{s.Retain(), time.Now()}
	k.bytes += s.Bytes()
	if k.sweep == nil {
		k.sweep = time.AfterFunc(keptTime, k.dropUnused)
	}
}

func (k *Kept) leastRecentLocked() (oldest uint64) {
	var since time.Time
	for number, e := range k.byNumber {
		if since.IsZero() || e.used.Before(since) {
			oldest, since = number, e.used
		}
	}
	return oldest
}

func (k *Kept) dropLocked(number uint64) {
	if e := k.byNumber[number]; e != nil {
		delete(k.byNumber, number)
		k.bytes -= e.storage.Bytes()
		k.total.used.Add(-1)
		e.storage.Close()
	}
}

// dropUnused unmaps storages that no call has named for keptTime.
func (k *Kept) dropUnused() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for number, e := range k.byNumber {
		if now.Sub(e.used) >= keptTime {
			k.dropLocked(number)
		}
	}
	if len(k.byNumber) == 0 {
		k.sweep = nil
		return
	}
	k.sweep.Reset(keptTime - now.Sub(k.byNumber[k.leastRecentLocked()].used))
}

// Use returns the number and the size of the kept storages.
func (k *Kept) Use() (storages int, bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byNumber), k.bytes
}

// Close unmaps everything. Later calls of Put have no effect.
func (k *Kept) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for number := range k.byNumber {
		k.dropLocked(number)
	}
	if k.sweep != nil {
		k.sweep.Stop()
	}
}
