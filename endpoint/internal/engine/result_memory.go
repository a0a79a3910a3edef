package engine

import (
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
)

// resultMemory counts the memory of results that a server keeps for its clients: of managed objects as long as a
// session has references, and of other results until they have been sent. What a session has several times counts once
// for it, and what several sessions have counts once for all together.
type resultMemory struct {
	one, all int64 // the bounds

	mu       sync.Mutex
	own      uint64 // the server's own session, which is no client: nothing counts for it
	used     int64
	holders  map[*Result]int // sessions that have it
	sessions map[uint64]*sessionResults
}

// sessionResults are what one session has of it: at least one result.
type sessionResults struct {
	used int64
	of   map[*Result]int // how many times it has it
}

// smallResult is how much memory a result may have without being counted: there are no more of them than requests in
// flight and references.
const smallResult = 4 << 10

// Exempt notes which session is the server's own.
func (m *resultMemory) Exempt(session uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own = session
}

// Take counts a result for a session, or refuses it. A result is never refused to a session that has no other.
func (m *resultMemory) Take(session uint64, r *Result) error {
	n := r.Payload.Bytes()
	if n <= smallResult {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holders == nil {
		m.holders, m.sessions = map[*Result]int{}, map[uint64]*sessionResults{}
	}
	mine := m.sessions[session]
	switch {
	case session == m.own:
		return nil
	case mine != nil && mine.of[r] > 0:
		mine.of[r]++
		return nil
	case mine != nil && n > m.one-mine.used:
		return limits.Exceeded(limits.ObjectBytes, "a result of %d bytes more: this client has results of %d bytes and may have %d", n, mine.used, m.one)
	case m.holders[r] == 0 && m.used > 0 && n > m.all-m.used:
		return limits.Exceeded(limits.ObjectBytes, "a result of %d bytes more: all clients have results of %d bytes and may have %d", n, m.used, m.all)
	case mine == nil:
		mine = &sessionResults{of: map[*Result]int{}}
		m.sessions[session] = mine
	}
	mine.of[r] = 1
	mine.used += n
	if m.holders[r]++; m.holders[r] == 1 {
		m.used += n
	}
	return nil
}

// Give undoes take.
func (m *resultMemory) Give(session uint64, r *Result) {
	n := r.Payload.Bytes()
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

// Use returns the bounds, what is in use, and the most that one session has.
func (m *resultMemory) Use() (one, all, used, most int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mine := range m.sessions {
		most = max(most, mine.used)
	}
	return m.one, m.all, m.used, most
}
