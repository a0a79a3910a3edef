// Package session is what an owner has of each client that is connected: the handshake, the goroutine that reads, the
// requests in flight and their answers, and all that the client holds, which goes back when the connection ends. It
// knows operations only as the entries of a table that the server passes in.
package session

import (
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config is what the sessions of a server work with.
type Config struct {
	Log       *slog.Logger         // gets what operators should know
	Socket    string               // the path that clients dial, for errors
	Label     string               // of the server's own client
	AllowUIDs []uint32             // users that may connect beside the server's own
	Hello     func() message.Hello // of the server
	Limits    Limits               // of one client
	Totals    *Totals              // of all clients together
	Engine    *engine.Engine       // has the objects and results that clients hold
	Catalog   *catalog.Catalog     // has their leases
	Offers    *offering.Table      // has the endpoints that they offer
	// Find returns the endpoint with the name, or nil. It borrows the name, which lies in the frame.
	Find func(name []byte) *engine.Definition
	// Operations are what clients can ask for. They may be set after [NewRegister], before the first client comes.
	Operations map[message.Op]*Operation
}

// Limits bound what one client can make the server hold and do, as the limits of the server with the same names say.
type Limits struct {
	Wire          wire.Limits   // of frames
	Clients       int           // that are connected at once
	Requests      int           // in flight
	RequestTime   time.Duration // of one request; 0 for as long as the client waits
	RequestBytes  int64         // in flight
	Subscriptions int           // leases, and names in watches
	KeptBytes     int64         // of arguments that stay mapped; none where it is negative
	SlabBytes     int64         // of results whose memory is used again; none where it is negative
	Idle          time.Duration // that a client may stay which holds nothing; 0 for as long as it likes
}

// Totals count what all clients together make the server hold, and bound it.
type Totals struct {
	Files, Bodies *wire.Budget       // of requests in flight
	Answers       *wire.Budget       // that are not read yet
	Rings         *wire.Budget       // by which small frames go
	Kept          transfer.KeptTotal // memory of arguments that stays mapped
	Slabs         transfer.SlabTotal // memory of results that is used again
	Refusals      limits.Refusals    // by limit
}

// Register is the sessions of a server, from its first client until the last one has gone after [Register.Stop]. Its
// methods are safe for concurrent use.
type Register struct {
	Config
	Requests atomic.Uint64 // that came
	Failures atomic.Uint64 // that were answered with an error

	runners   runners
	accepting chan struct{} // closed by Open
	openOnce  sync.Once
	stopping  chan struct{} // closed when closing is set
	done      chan struct{} // closed when the last session has gone after closing

	mu        sync.Mutex
	sessions  map[uint64]*Session
	nextID    uint64
	self      *Session     // of the server's own client: the current one, or before the first call the one to be
	selfPipe  *inproc.Pipe // the other end of self until the client takes it
	selves    int          // how many of the sessions are its: one, and for a moment two where the pipe has broken
	closing   bool
	idleTimer *time.Timer // nil without a limit for idle clients
}

// NewRegister returns a register without clients.
func NewRegister(c Config) *Register {
	r := &Register{
		Config: c, sessions: map[uint64]*Session{}, nextID: 1,
		accepting: make(chan struct{}), stopping: make(chan struct{}), done: make(chan struct{}),
	}
	r.selfPipe = r.newSelfLocked() // nobody else has r yet
	return r
}

// Open lets clients of this process in, which wait for it, and begins to look for idle ones.
func (r *Register) Open() {
	r.watchIdle()
	r.openOnce.Do(func() { close(r.accepting) })
}

// Admit begins the session of a client of another process, unless the server is closing. It takes the connection.
func (r *Register) Admit(c *net.UnixConn) {
	conn, err := wire.NewConn(c, r.Limits.Wire)
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
	r.sessions[ses.ID] = ses
	go ses.run()
}

// rejectBacklog is how many connections over the limit of clients may be open at a time, each until its error is sent.
const rejectBacklog = 64

// forget is called by a session when it has ended.
func (r *Register) forget(ses *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, ses.ID)
	if ses.Own {
		r.selves--
	}
	r.finishIfIdleLocked()
}

// clientsLocked counts the clients. The server's own client does not count.
func (r *Register) clientsLocked() int { return len(r.sessions) - r.selves }

func (r *Register) finishIfIdleLocked() {
	if !r.closing || len(r.sessions) > 0 {
		return
	}
	select {
	case <-r.done:
	default:
		close(r.done)
		r.runners.close() // the sessions ended after their requests
	}
}

// Stop lets nobody in any more and returns the sessions there are.
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

// Stopping is closed by Stop.
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

// Done is closed when the last session has ended after Stop.
func (r *Register) Done() <-chan struct{} { return r.done }

// Of returns the sessions with the numbers that still exist, the server's own among them.
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

// Clients are the sessions of clients, without this process's own.
func (r *Register) Clients() []*Session {
	return slices.DeleteFunc(r.all(), func(ses *Session) bool { return ses.Own })
}

func (r *Register) all() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.sessions))
}

// Self is the session of the server's own client: the current one, or the one to be.
func (r *Register) Self() *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.self
}

// Describe lists the server's own session and those of the clients, without what they hold.
func (r *Register) Describe() []message.SessionInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]message.SessionInfo, 0, len(r.sessions)+1)
	list = append(list, r.self.Describe())
	for _, ses := range r.sessions {
		if ses != r.self {
			list = append(list, ses.Describe())
		}
	}
	return list
}

// TrimSlabs gives back the memory of results that waits to be used again, and returns how many bytes that were.
func (r *Register) TrimSlabs() (bytes int64) {
	for _, ses := range r.all() {
		bytes += ses.Slabs.Trim()
	}
	return bytes
}
