package endpoint

import (
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// resultMemory counts the memory of results that a server keeps for its clients: of managed objects as long as a session has references, and of
// other results until they have been sent. What a session has several times counts once for it, and what several sessions have counts once
// for all together.
type resultMemory struct {
	one, all int64 // the bounds

	mu       sync.Mutex
	own      uint64 // the server's own session, which is no client: nothing counts for it
	used     int64
	holders  map[*result]int // sessions that have it
	sessions map[uint64]*sessionResults
}

// sessionResults are what one session has of it: at least one result.
type sessionResults struct {
	used int64
	of   map[*result]int // how many times it has it
}

// smallResult is how much memory a result may have without being counted: there are no more of them than requests in flight and references.
const smallResult = 4 << 10

// exempt notes which session is the server's own.
func (m *resultMemory) exempt(session uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own = session
}

// take counts a result for a session, or refuses it. A result is never refused to a session that has no other.
func (m *resultMemory) take(session uint64, r *result) error {
	n := r.payload.Bytes()
	if n <= smallResult {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holders == nil {
		m.holders, m.sessions = map[*result]int{}, map[uint64]*sessionResults{}
	}
	mine := m.sessions[session]
	switch {
	case session == m.own:
		return nil
	case mine != nil && mine.of[r] > 0:
		mine.of[r]++
		return nil
	case mine != nil && n > m.one-mine.used:
		return over(limitObjectBytes, "a result of %d bytes more: this client has results of %d bytes and may have %d", n, mine.used, m.one)
	case m.holders[r] == 0 && m.used > 0 && n > m.all-m.used:
		return over(limitObjectBytes, "a result of %d bytes more: all clients have results of %d bytes and may have %d", n, m.used, m.all)
	case mine == nil:
		mine = &sessionResults{of: map[*result]int{}}
		m.sessions[session] = mine
	}
	mine.of[r] = 1
	mine.used += n
	if m.holders[r]++; m.holders[r] == 1 {
		m.used += n
	}
	return nil
}

// give undoes take.
func (m *resultMemory) give(session uint64, r *result) {
	n := r.payload.Bytes()
	if n <= smallResult {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mine := m.sessions[session]
	if mine == nil { // the server's own
		return
	}
	if mine.of[r]--; mine.of[r] > 0 {
		return
	}
	delete(mine.of, r)
	if mine.used -= n; len(mine.of) == 0 {
		delete(m.sessions, session)
	}
	if m.holders[r]--; m.holders[r] == 0 {
		delete(m.holders, r)
		m.used -= n
	}
}

// useObjectBytes is what is in use of it.
func useObjectBytes(s *Server, _ []*session) message.LimitUse {
	m := &s.resultMemory
	m.mu.Lock()
	defer m.mu.Unlock()
	out := message.LimitUse{Client: m.one, All: m.all, Used: m.used}
	for _, mine := range m.sessions {
		out.Most = max(out.Most, mine.used)
	}
	return out
}

// boundedMemory is what this process may have of all devices together; no bound where one does not say.
func boundedMemory(devices []driver.Device) int64 {
	sum := totalMemory(devices)
	for _, dev := range devices {
		if bounded, can := dev.(driver.Bounded); can {
			if n, _ := bounded.MemoryLimit(); n > 0 && n < dev.Info().TotalBytes {
				sum -= dev.Info().TotalBytes - n
			}
		}
	}
	return sum
}
