package engine

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"sync"
)

// resultMemory counts the memory of results that a server keeps for its clients: of managed objects while a session has
// references, and of other results until they have been sent. A result counts once for each session that holds it, and
// once in the total.
type resultMemory struct {
	one, all int64 // limits for one session and for all sessions

	mu       sync.Mutex
	own      uint64 // the server's own session, which is exempt
	used     int64
	sessions map[uint64]*sessionResults
}

// sessionResults are the results that one session holds, at least one.
type sessionResults struct {
	used int64
	of   map[*Result]int // number of times the session holds each result
}

// uncountedResult is the size up to which results are not counted. Their number is limited by the requests in flight and
// the references.
const uncountedResult = 4 << 10

// Exempt sets the server's own session, whose results are not counted.
func (m *resultMemory) Exempt(session uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own = session
}

// Add counts a result for a session, or returns an error if a limit would be exceeded. It never refuses the first
// result of a session.
func (m *resultMemory) Add(session uint64, r *Result) error {
	n := r.Payload.Bytes()
	if n <= uncountedResult {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sessions == nil {
		m.sessions = map[uint64]*sessionResults{}
	}
	mine := m.sessions[session]
	switch {
	case session == m.own:
		return nil
	case mine != nil && mine.of[r] > 0:
		mine.of[r]++
		return nil
	case mine != nil && n > m.one-mine.used:
		return status.Exceeded(status.LimitObjectBytes, "a result of %d bytes more: this client has results of %d bytes and may have %d", n, mine.used, m.one)
	case r.holders == 0 && m.used > 0 && n > m.all-m.used:
		return status.Exceeded(status.LimitObjectBytes, "a result of %d bytes more: all clients have results of %d bytes and may have %d", n, m.used, m.all)
	case mine == nil:
		mine = &sessionResults{of: map[*Result]int{}}
		m.sessions[session] = mine
	}
	mine.of[r] = 1
	mine.used += n
	if r.holders++; r.holders == 1 {
		m.used += n
	}
	return nil
}

// Remove undoes Add.
func (m *resultMemory) Remove(session uint64, r *Result) {
	n := r.Payload.Bytes()
	if n <= uncountedResult {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mine := m.sessions[session]
	if mine == nil { // the server's own session
		return
	}
	if mine.of[r]--; mine.of[r] > 0 {
		return
	}
	delete(mine.of, r)
	if mine.used -= n; len(mine.of) == 0 {
		delete(m.sessions, session)
	}
	if r.holders--; r.holders == 0 {
		m.used -= n
	}
}

// Use returns the limits, the bytes in use, and the maximum that one session holds.
func (m *resultMemory) Use() (one, all, used, most int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mine := range m.sessions {
		most = max(most, mine.used)
	}
	return m.one, m.all, m.used, most
}
