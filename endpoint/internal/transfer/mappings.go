package transfer

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxMappings is the maximum number of mappings of one session in a [Kept], and in a [Slabs].
	MaxMappings = 64
	// idleTime is the time after which an idle mapping is removed.
	idleTime = 3 * time.Second
)

// mappings holds memory that a server and one client both keep mapped between calls: arguments in [Kept], by the
// client's numbers, and results in [Slabs], by the server's. It applies the limits, evicts idle mappings to make room,
// the least recently used first, and removes mappings that were idle for idleTime. Its fields are guarded by mu.
type mappings[M mapped] struct {
	mu       sync.Mutex
	byNumber map[uint64]M
	bytes    int64
	most     int64 // maximum of bytes; 0 disables mappings
	total    *MappingTotal
	unlock   func()      // unlocks mu
	sweep    *time.Timer // runs while any mapping is idle
	closed   bool
}

// mapped is one kind of mapping.
type mapped interface {
	base() *mapping
	// release frees the memory after the mapping was removed.
	release()
}

// mapping is the part that all kinds of mappings have.
type mapping struct {
	number uint64
	bytes  int64
	busy   bool      // must not be evicted
	used   time.Time // time of the last use if it is not busy
}

func (m *mapping) base() *mapping { return m }

// MappingTotal limits the mappings of all sessions, arguments and results together, because each uses a descriptor. It
// also counts results.
type MappingTotal struct {
	// Most is the maximum number of mappings. MostBytes is the maximum of their sizes; 0 means no limit.
	Most, MostBytes int64

	mu          sync.Mutex
	used, bytes int64
	// Reused counts results in reused slabs. Fresh counts results in new slabs. Refused counts results without a slab,
	// because a limit was reached.
	Reused, Fresh, Refused atomic.Uint64
}

// Used returns the number and the size of all mappings.
func (t *MappingTotal) Used() (count, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used, t.bytes
}

func (t *MappingTotal) reserve(bytes int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= t.Most || t.MostBytes > 0 && bytes > t.MostBytes-t.bytes {
		return false
	}
	t.used++
	t.bytes += bytes
	return true
}

func (t *MappingTotal) release(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used--
	t.bytes -= bytes
}

// reserveLocked makes room for a mapping, which the caller adds with addLocked. It returns false if a limit is reached.
func (m *mappings[M]) reserveLocked(bytes int64) bool {
	if m.closed || bytes > m.most {
		return false
	}
	for len(m.byNumber) >= MaxMappings || m.bytes > m.most-bytes {
		oldest, ok := m.leastRecentLocked()
		if !ok {
			return false
		}
		m.removeLocked(oldest)
	}
	return m.total.reserve(bytes)
}

func (m *mappings[M]) addLocked(one M) {
	if m.byNumber == nil {
		m.byNumber = map[uint64]M{}
	}
	b := one.base()
	m.byNumber[b.number] = one
	m.bytes += b.bytes
}

// idleLocked marks a mapping as idle.
func (m *mappings[M]) idleLocked(one M) {
	b := one.base()
	b.busy, b.used = false, time.Now()
	if m.sweep == nil {
		m.sweep = time.AfterFunc(idleTime, m.removeUnused)
	}
}

// leastRecentLocked returns the idle mapping that was used least recently.
func (m *mappings[M]) leastRecentLocked() (oldest M, ok bool) {
	for _, one := range m.byNumber {
		if b := one.base(); !b.busy && (!ok || b.used.Before(oldest.base().used)) {
			oldest, ok = one, true
		}
	}
	return oldest, ok
}

// removeLocked removes a mapping.
func (m *mappings[M]) removeLocked(one M) {
	b := one.base()
	if _, ok := m.byNumber[b.number]; !ok {
		return
	}
	delete(m.byNumber, b.number)
	m.bytes -= b.bytes
	m.total.release(b.bytes)
	one.release()
}

// removeUnused removes mappings that were idle for idleTime.
func (m *mappings[M]) removeUnused() {
	m.mu.Lock()
	defer m.unlock()
	for {
		oldest, ok := m.leastRecentLocked()
		if !ok {
			m.sweep = nil
			return
		}
		if left := idleTime - time.Since(oldest.base().used); left > 0 {
			m.sweep.Reset(left)
			return
		}
		m.removeLocked(oldest)
	}
}

// Use returns the number and the size of the mappings.
func (m *mappings[M]) Use() (count int, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.byNumber), m.bytes
}

// closeLocked ends the timer. No mapping is added afterwards.
func (m *mappings[M]) closeLocked() {
	m.closed = true
	if m.sweep != nil {
		m.sweep.Stop()
	}
}
