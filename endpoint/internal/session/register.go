// Package session manages the connected clients of an owner: handshakes, read loops, requests in flight and their
// responses. The server passes in its operations and what it keeps for a client. Nothing here depends on the operations.
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
	Hello     func() message.Hello // of the server
	Limits    Limits               // of one client
	Totals    *Totals              // of all clients together
	// NewClient returns what the server keeps for the client of a new session. It must not use the register.
	NewClient func(*Session) Client
	// Operations are the operations that clients can request. They may be set after [NewRegister], before the first
	// client connects.
	Operations map[message.Op]Operation
}

// Limits bound the resources of one client. The server's limits with the same names document them.
type Limits struct {
	Wire          wire.Limits   // of frames
	Clients       int           // connected at once
	Requests      int           // in flight
	RequestTime   time.Duration // for one request; 0 for no limit
	RequestBytes  int64         // in flight
	Subscriptions int           // leases plus names in watches
	Idle          time.Duration // time after which a client without resources is disconnected; 0 for no limit
}

// Totals count and bound the resources of all clients together.
type Totals struct {
	Files, Bodies *Budget         // of requests in flight
	Answers       *Budget         // that are unread
	Rings         *Budget         // for small frames
	Refusals      status.Refusals // by limit
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
	done      chan struct{} // closed when the last session has ended after closing

	mu        sync.Mutex
	sessions  map[uint64]*Session
	nextID    uint64
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
		accepting: make(chan struct{}), stopping: make(chan struct{}), done: make(chan struct{}),
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
	r.mu.Lock()
	defer r.mu.Unlock()
	// Accept up to rejectBacklog connections over the limit, so that each can be sent ErrLimit before it is closed.
	if r.closing || r.clientsLocked() >= r.Limits.Clients+rejectBacklog {
		conn.Close()
		return
	}
	r.nextID++
	ses := newSession(r, conn, r.nextID)
	ses.overLimit = r.clientsLocked() >= r.Limits.Clients
	ses.Client = r.NewClient(ses)
	r.sessions[ses.ID] = ses
	go ses.run()
}

// rejectBacklog is the maximum number of connections over the limit of clients that are open until their error is sent.
const rejectBacklog = 64

// remove removes a session that has ended.
func (r *Register) remove(ses *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, ses.ID)
	if ses.Own {
		r.selves--
	}
	r.finishIfIdleLocked()
}

// clientsLocked returns the number of clients, without the server's own.
func (r *Register) clientsLocked() int { return len(r.sessions) - r.selves }

func (r *Register) finishIfIdleLocked() {
	if !r.closing || len(r.sessions) > 0 {
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

// Clients returns the sessions without the server's own.
func (r *Register) Clients() []*Session {
	return slices.DeleteFunc(r.all(), func(ses *Session) bool { return ses.Own })
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

// All returns the server's own session, which may not have begun, and the clients.
func (r *Register) All() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := append(make([]*Session, 0, len(r.sessions)+1), r.self)
	for _, ses := range r.sessions {
		if ses != r.self {
			list = append(list, ses)
		}
	}
	return list
}
