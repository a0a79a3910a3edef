// Package session manages the connected clients of an owner: handshakes, read loops, requests in flight and their
// responses. The server passes in its operations and its state of a client. Nothing here depends on the operations.
package session

import (
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config holds the dependencies and settings of a server's sessions.
type Config struct {
	Log       *slog.Logger         // for operators
	Socket    string               // path that clients dial, for error texts
	Label     string               // of the server's own client
	AllowUIDs []uint32             // users that may connect in addition to the server's own
	Admits    func(*Session) error // why a client may not connect; nil to decide by its user and AllowUIDs
	Hello     func() message.Hello // of the server
	Limits    status.Limits        // of the server
	Totals    *Totals              // of all clients together
	// NewClient returns what the server keeps for the client of a new session. It must not use the register.
	NewClient func(*Session) Client
	// Operations are the operations that clients can request. They may be set after [NewRegister], before the first
	// client connects.
	Operations map[message.Op]Operation
}

// Totals count and bound the resources of all clients together.
type Totals struct {
	Files, Bodies *Budget         // of requests in flight
	Answers       *Budget         // that are unread
	Rings         *Budget         // for small frames
	Refusals      status.Refusals // by limit
}

// NewTotals returns the totals for a server's limits. names are the limits whose refusals are counted.
func NewTotals(l *status.Limits, names ...status.Limit) Totals {
	return Totals{
		Files:    NewBudget("descriptors", int64(l.Descriptors), 0),
		Bodies:   NewBudget("bytes", l.RequestBytesTotal, 0),
		Answers:  NewBudget("bytes", l.AnswerBytesTotal, l.AnswerBytes),
		Rings:    NewBudget("bytes of rings", l.RingBytesTotal, 0),
		Refusals: status.NewRefusals(names...),
	}
}

// Register holds the sessions of a server until the last one ends after [Register.Stop]. Its methods are safe for
// concurrent use.
type Register struct {
	Config
	Requests atomic.Uint64 // received
	Failures atomic.Uint64 // answered with an error

	runners   runners
	accepting chan struct{} // closed by Open
	openOnce  sync.Once
	stopping  chan struct{} // closed when closing is set
	alone     chan struct{} // closed when the last session of a client has ended after closing
	done      chan struct{} // closed when the last session has ended after closing

	mu        sync.Mutex
	sessions  map[uint64]*Session
	nextID    uint64
	refused   int             // sessions that the handshake refuses
	self      *Session        // of the server's own client: the current session, or the next one before the first call
	selfPipe  *transport.Pipe // client's end of self, until ConnectSelf returns it
	selves    int             // sessions of the server's own client: one, or briefly two after the pipe broke
	closing   bool
	idleTimer *time.Timer // nil if idle time is not limited
}

// NewRegister returns a register without clients.
func NewRegister(c Config) *Register {
	r := &Register{
		Config: c, sessions: map[uint64]*Session{}, nextID: 1,
		accepting: make(chan struct{}), stopping: make(chan struct{}), alone: make(chan struct{}), done: make(chan struct{}),
	}
	r.selfPipe = r.newSelfLocked() // no lock: r is not shared yet
	return r
}

// Open admits the waiting clients of this process and starts the sweeps for idle sessions.
func (r *Register) Open() {
	r.watchIdle()
	r.openOnce.Do(func() { close(r.accepting) })
}

// Admit starts the session of a client in another process, unless the server is closing. It takes ownership of the
// connection.
func (r *Register) Admit(c *net.UnixConn) {
	conn, err := wire.NewConn(c, r.Totals.charged(r.Limits.Wire))
	if err != nil {
		r.Log.Warn("client refused", "error", err)
		return
	}
	ses := newSession(r, conn)
	r.mu.Lock()
	defer r.mu.Unlock()
	ses.refusal = ses.allowed() // under the lock, so that a change of the policy finds the session or is applied here
	if ses.refusal == nil && r.clientsLocked() >= r.Limits.Clients {
		ses.refusal = status.Exceeded(status.LimitClients, "this owner serves at most %d clients at once", r.Limits.Clients)
		r.Totals.Refusals.Add(status.LimitClients)
	}
	// A refused client receives the reason before its connection is closed. Up to rejectBacklog of them have a connection, so
	// that they cannot use the places of clients that may connect.
	if r.closing || ses.refusal != nil && r.refused >= rejectBacklog {
		ses.cancel(errDisconnected)
		conn.Close()
		return
	}
	if ses.refusal != nil {
		r.refused++
	}
	r.nextID++
	ses.ID = r.nextID
	ses.Client = r.NewClient(ses)
	r.sessions[ses.ID] = ses
	go ses.run()
}

// rejectBacklog is the maximum number of connections of refused clients that are open until their error is sent.
const rejectBacklog = 64

// remove removes a session that has ended.
func (r *Register) remove(ses *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, ses.ID)
	if ses.refusal != nil {
		r.refused--
	}
	if ses.Own {
		r.selves--
	}
	r.finishIfIdleLocked()
}

// clientsLocked returns the number of clients, without the server's own and refused ones.
func (r *Register) clientsLocked() int { return len(r.sessions) - r.selves - r.refused }

func (r *Register) finishIfIdleLocked() {
	if !r.closing || len(r.sessions) > r.selves {
		return
	}
	select {
	case <-r.alone:
	default:
		close(r.alone)
	}
	if len(r.sessions) > 0 {
		return
	}
	select {
	case <-r.done:
	default:
		close(r.done)
		r.runners.close() // all requests have completed by now
	}
}

// Stop admits no further clients and returns the current sessions.
func (r *Register) Stop() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closing {
		r.closing = true
		close(r.stopping)
		if r.idleTimer != nil {
			r.idleTimer.Stop()
		}
	}
	r.finishIfIdleLocked()
	return slices.Collect(maps.Values(r.sessions))
}

// Stopping returns a channel that Stop closes.
func (r *Register) Stopping() <-chan struct{} { return r.stopping }

// Stopped reports whether Stop was called.
func (r *Register) Stopped() bool {
	select {
	case <-r.stopping:
		return true
	default:
		return false
	}
}

// Alone returns a channel that is closed when the last session of a client has ended after Stop. Only the server's own client
// is left.
func (r *Register) Alone() <-chan struct{} { return r.alone }

// Done returns a channel that is closed when the last session has ended after Stop.
func (r *Register) Done() <-chan struct{} { return r.done }

// Of returns the sessions with the given ids that still exist, including the server's own.
func (r *Register) Of(ids []uint64) []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*Session
	for _, id := range ids {
		if ses := r.sessions[id]; ses != nil {
			list = append(list, ses)
		}
	}
	return list
}

// Clients returns the sessions of clients, except refused ones.
func (r *Register) Clients() []*Session {
	return slices.DeleteFunc(r.all(), func(ses *Session) bool { return ses.Own || ses.refusal != nil })
}

func (r *Register) all() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.sessions))
}

// Self returns the session of the server's own client: the current one, or the next one before the first call.
func (r *Register) Self() *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.self
}

// All returns the server's own session, also before its first request, and the result of Clients.
func (r *Register) All() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := append(make([]*Session, 0, len(r.sessions)+1), r.self)
	for _, ses := range r.sessions {
		if ses != r.self && ses.refusal == nil {
			list = append(list, ses)
		}
	}
	return list
}
