package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Server owns state dicts and lets other processes of the host use them in place. Its methods are safe for concurrent
// use.
type Server struct {
	caller
	opts     ServerOptions
	id       string
	log      *slog.Logger
	started  time.Time
	sock     *unixsock.Socket
	listener *inproc.Listener // for clients of this process; nil without a socket
	devices  transfer.Devices
	versions

	files, bodies, answers, rings *wire.Budget // of all clients
	kept                          transfer.KeptTotal
	slabs                         transfer.SlabTotal
	refusals                      limits.Refusals
	resultsWhy, tasksWhy          string   // where their budgets come from
	reclaims                      []func() // end what the devices call when they are out of memory

	support support

	registry  *Registry
	offers    *offering.Table // endpoints whose functions clients run
	intercept Invoke          // the interceptors; nil for none
	engine    *engine.Engine
	runners   runners

	requests atomic.Uint64
	failures atomic.Uint64
	serving  atomic.Bool

	accepting  chan struct{} // closed when Serve begins
	acceptOnce sync.Once

	own *Client // calls of this process go through it

	mu        sync.Mutex
	sessions  map[uint64]*session
	nextID    uint64
	self      *session     // of own: the current one, or before the first call the one to be
	selfPipe  *inproc.Pipe // the other end of self until own takes it
	selves    int          // how many of the sessions are own's: one, and for a moment two where the pipe has broken
	closing   bool
	stopping  chan struct{} // closed when closing is set
	idleTimer *time.Timer   // nil without a limit for idle clients
	done      chan struct{} // closed when the last session has gone after closing
}

// NewServer binds the socket and returns an owner that has published nothing yet. Clients that connect before Serve
// wait in the kernel's queue, so publishing first means that nobody finds the owner empty. Errors: [ErrInUse] for a
// socket with a live owner, [ErrPermission] for a directory that others may write, [ErrConfiguration] for options that
// make no sense.
func NewServer(opts ServerOptions) (*Server, error) {
	s, err := newOwner(opts)
	if err != nil {
		return nil, err
	}
	if s.sock, err = bind(&s.opts); err != nil {
		return nil, err
	}
	s.listener = &inproc.Listener{Dial: s.connect}
	s.listener.Announce(s.sock.ID())
	return s, nil
}

// newOwner returns a server without a socket.
func newOwner(opts ServerOptions) (*Server, error) {
	opts.Limits.defaults(opts.Devices)
	orDefault(&opts.Limits.Tasks, opts.Tasks.share())
	budget, why := MemoryBudget(opts.Devices)
	resultsWhy, tasksWhy := opts.Results.budget(budget, why), opts.Tasks.budget(budget, why)
	if opts.Logger == nil {
		opts.Logger = quiet(slog.Default())
	}
	devices, err := transfer.NewDevices(opts.Devices)
	if err != nil {
		return nil, err
	}
	intercept, err := chain(opts.Interceptors)
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, log: opts.Logger, id: transfer.NewID(), started: time.Now(), devices: devices, intercept: intercept,
		sessions: map[uint64]*session{}, stopping: make(chan struct{}), done: make(chan struct{}), accepting: make(chan struct{}),
		registry: opts.Registry, refusals: limits.NewRefusals(limitNames()...), resultsWhy: resultsWhy, tasksWhy: tasksWhy,
		kept:    transfer.KeptTotal{Most: int64(min(4096, unixsock.MaxOpenFiles()/16))},
		slabs:   transfer.SlabTotal{MostSlabs: int64(min(4096, unixsock.MaxOpenFiles()/16)), MostBytes: opts.Limits.SlabBytesTotal},
		files:   wire.NewBudget("descriptors", int64(opts.Limits.Descriptors), 0),
		bodies:  wire.NewBudget("bytes", opts.Limits.RequestBytesTotal, 0),
		answers: wire.NewBudget("bytes", opts.Limits.AnswerBytesTotal, opts.Limits.AnswerBytes),
		rings:   wire.NewBudget("bytes of rings", opts.Limits.RingBytesTotal, 0),
	}
	s.opts.Limits.Wire.FileBudget, s.opts.Limits.Wire.BodyBudget, s.opts.Limits.Wire.RingBudget = s.files, s.bodies, s.rings
	s.engine = engine.New(engine.Config{
		Server: s.id, Log: s.log, Devices: devices, Frame: s.opts.Limits.Wire,
		ResultBytes: opts.Limits.ObjectBytes, ResultBytesTotal: opts.Limits.ObjectBytesTotal,
		Results: engine.CacheBounds{Entries: opts.Results.Entries, Bytes: max(opts.Results.Bytes, 0), TTL: opts.Results.TTL},
		Tasks: engine.TaskBounds{
			Workers: opts.Tasks.Workers, Capacity: opts.Tasks.Capacity, Retain: opts.Tasks.Retain, TTL: opts.Tasks.TTL,
			Bytes: max(opts.Tasks.Bytes, 0),
		},
	})
	s.offers = newOffers(s)
	s.digests.log = s.log
	s.versions.log, s.versions.frame, s.versions.names = s.log, s.opts.Limits.Wire, &s.engine.Names
	s.catalog = catalog.New(catalog.Options{Retain: opts.Retain, Freed: s.freed})
	s.nextID = 1
	s.selfPipe = s.newSelfLocked() // nobody else has s yet
	s.own = newClient(ClientOptions{Socket: opts.Socket, Devices: opts.Devices, Limits: opts.Limits.Wire, Label: opts.Label, Logger: opts.Logger}, devices)
	s.own.dialSelf = s.connectSelf
	s.caller.to = s.own
	for _, dev := range opts.Devices {
		if r, can := dev.(driver.Reclaimer); can {
			s.reclaims = append(s.reclaims, r.OnRefused(s.trim))
		}
	}
	return s, nil
}

// trim gives memory back that is kept without need, of so many bytes if it can, and reports whether there was any.
func (s *Server) trim(bytes int64) bool {
	s.mu.Lock()
	sessions := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	var slabs int64
	for _, ses := range sessions {
		slabs += ses.slabs.Trim()
	}
	return s.engine.Trim(bytes) || slabs > 0
}

// bind makes the socket that the options ask for.
func bind(opts *ServerOptions) (*unixsock.Socket, error) {
	if opts.Listener != nil {
		if opts.Socket == "" {
			opts.Socket = opts.Listener.Addr().String()
		}
		return unixsock.HandedOver(opts.Socket, opts.Listener), nil
	}
	if opts.Socket == "" {
		path, err := unixsock.SocketPath("", 0)
		if err != nil {
			return nil, err
		}
		opts.Socket = path
	}
	return unixsock.Listen(opts.Socket, len(opts.AllowUIDs) > 0)
}

// ID names this server; a restarted owner has another one.
func (s *Server) ID() string { return s.id }

// Socket is the path that clients dial.
func (s *Server) Socket() string { return s.opts.Socket }

// Serve accepts clients until ctx ends or the server is closed. Call it once. When ctx ends, Serve shuts the server
// down, with ten seconds for what is in flight, and returns nil or the error of [Server.Shutdown]. After Shutdown or
// Close it returns [ErrServerClosed].
func (s *Server) Serve(ctx context.Context) error {
	if s.sock == nil {
		return status.Configuration(fmt.Errorf("%w: a local node serves nobody", status.ErrInvalid))
	}
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveDrain)
		defer cancel()
		drained <- s.Shutdown(limited)
	})
	err := s.accept()
	if stop() {
		return err
	}
	if errors.Is(err, status.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, <-drained)
}

// serveDrain is how long requests and tasks in flight get to end when the context of Serve ends.
const serveDrain = 10 * time.Second

// accept admits clients until the server closes.
func (s *Server) accept() error {
	s.serving.Store(true)
	s.watchIdle()
	defer s.serving.Store(false)
	s.acceptOnce.Do(func() { close(s.accepting) })
	var watch sync.WaitGroup
	watch.Go(s.watchSocket)
	defer watch.Wait()
	backoff := acceptBackoff{log: s.log, socket: s.opts.Socket, stopping: s.stopping}
	for {
		l := s.sock.Accepting()
		c, err := l.AcceptUnix()
		if err == nil {
			backoff.reset()
			s.admit(c)
			continue
		}
		if s.isClosing() {
			return status.ErrServerClosed
		}
		if s.sock.Accepting() != l { // bound again
			continue
		}
		if !temporary(err) {
			return fmt.Errorf("accept on %s: %w", s.opts.Socket, err)
		}
		backoff.failed(err)
	}
}

// admit starts a session, unless the server is closing.
func (s *Server) admit(c *net.UnixConn) {
	conn, err := wire.NewConn(c, s.opts.Limits.Wire)
	if err != nil {
		s.log.Warn("client refused", "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Accept up to rejectBacklog connections over the limit, so that each can be sent ErrLimit before it is closed.
	if s.closing || s.clientsLocked() >= s.opts.Limits.Clients+rejectBacklog {
		conn.Close()
		return
	}
	s.nextID++
	ses := newSession(s, conn, s.nextID)
	ses.overLimit = s.clientsLocked() >= s.opts.Limits.Clients
	s.sessions[ses.id] = ses
	go ses.run()
}

// rejectBacklog is how many connections over the limit of clients may be open at a time, each until its error is sent.
const rejectBacklog = 64

// forget is called by a session when it has ended.
func (s *Server) forget(ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ses.id)
	if ses.own {
		s.selves--
	}
	s.finishIfIdleLocked()
}

// clientsLocked is how many clients there are. This process itself is none.
func (s *Server) clientsLocked() int { return len(s.sessions) - s.selves }

func (s *Server) finishIfIdleLocked() {
	if !s.closing || len(s.sessions) > 0 {
		return
	}
	select {
	case <-s.done:
	default:
		close(s.done)
		s.runners.close() // the sessions ended after their requests
	}
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// Shutdown stops accepting, tells every client goodbye, lets requests and tasks in flight end, and frees what the
// server owns. Idle clients do not hold it up. When ctx ends first, what is still running is cancelled, gets a
// twentieth of a second to end, and the cause of ctx is returned; what a function returns that does not heed its
// context is given back when it does. Memory that clients have attached stays theirs.
func (s *Server) Shutdown(ctx context.Context) error {
	sessions := s.beginClose()
	s.digests.close() // nobody is made to wait for them
	for _, ses := range sessions {
		if !ses.own { // this process may watch its tasks end
			ses.goodbyeWorker(ctx)
		}
	}
	err := s.engine.Tasks.Shutdown(ctx)
	for _, ses := range sessions {
		if ses.own {
			ses.goodbye()
		}
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return errors.Join(err, s.close(lateGrace))
}

// Close cuts every client off, cancels what runs and frees what the server owns. Functions get a second to heed their
// context; what they return later is given back when they do. A second Close is nil.
func (s *Server) Close() error { return s.close(closeGrace) }

// close is Close that waits for so long.
func (s *Server) close(grace time.Duration) error {
	for _, ses := range s.beginClose() {
		ses.cancel(status.ErrServerClosing)
		ses.cut()
	}
	s.digests.close()
	for _, remove := range s.reclaims {
		remove()
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.engine.Tasks.Shutdown(now) // its error is that of now
	_ = s.engine.Results.Close(now)  // builds that go on are those that s.done waits for
	select {
	case <-s.done:
	case <-time.After(grace):
		s.log.Warn("functions of endpoints go on after the server has closed", "socket", s.opts.Socket)
	}
	s.own.serverClosed()
	s.digests.work.Wait()
	return s.catalog.Close()
}

// How long functions get to heed their context: in Close, and at the end of a Shutdown whose time is over.
const (
	closeGrace = time.Second
	lateGrace  = closeGrace / 20
)

// beginClose stops accepting and returns the sessions there are.
func (s *Server) beginClose() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.closing = true
		close(s.stopping)
		if s.idleTimer != nil {
			s.idleTimer.Stop()
		}
		if s.sock != nil {
			s.listener.Conceal(s.sock.ID())
			if err := s.sock.Close(); err != nil {
				s.log.Warn("the socket was not closed cleanly", "socket", s.opts.Socket, "error", err)
			}
		}
	}
	s.finishIfIdleLocked()
	return slices.Collect(maps.Values(s.sessions))
}

// stops reports whether the server has begun to close.
func (s *Server) stops() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}
