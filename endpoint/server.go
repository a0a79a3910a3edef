package endpoint

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
)

// ErrServerClosed is what Serve returns after Shutdown or Close.
var ErrServerClosed = fmt.Errorf("server %w", os.ErrClosed)

// ServerOptions says where an owner listens and what it may hand out. The zero value serves nothing until Devices is set.
type ServerOptions struct {
	// Socket is the path to listen on; empty stands for SocketPath("", 0).
	Socket string
	// Listener is a Unix socket that is bound already, as systemd hands over. If set it is taken, Socket is only its name, and neither
	// a lock nor the socket file is touched.
	Listener *net.UnixListener
	// Devices are what tensors may live on. Borrowed: they must outlive the server.
	Devices []driver.Device
	// Retain is how many superseded versions of a name are kept though nobody reads them.
	Retain int
	// AllowUIDs are the users, beside the server's own, whose processes may connect. Whoever may connect may also publish.
	AllowUIDs []uint32
	// Limits bound what peers can make the server hold.
	Limits Limits
	// Registry has the functions that clients can call; nil for none. Borrowed. Endpoints that are registered later can be called at
	// once.
	Registry *Registry
	// Results bounds what is kept of results.
	Results ResultOptions
	// Tasks bounds the tasks.
	Tasks TaskOptions
	// Label is a name for people, shown to clients. At most 64 bytes.
	Label string
	// Logger gets what operators should know. Nil stands for slog.Default(), of which warnings and errors are used only.
	Logger *slog.Logger
}

// Limits bound what peers can make a server hold. A zero field stands for its default.
type Limits struct {
	// Wire bounds frames, descriptors, and how long a peer may take to introduce itself and to read.
	Wire wire.Limits
	// Clients is how many may be connected at once; 16384.
	Clients int
	// Requests is how many of one client may be in flight; 16384.
	Requests int
	// Subscriptions is how many leases and watches one client may have; 65536.
	Subscriptions int
	// Objects is how many references to managed objects one client may have; 65536.
	Objects int
}

// ResultOptions bound the cache of results. A zero field stands for its default.
type ResultOptions struct {
	// Entries is how many results are kept; [cache.DefaultEntries]. Negative for no bound.
	Entries int
	// Bytes is how many bytes of memory and encoding they may have together; 0 for no bound.
	Bytes int64
	// TTL is how long a result is kept; 0 for as long as there is room.
	TTL time.Duration
}

// TaskOptions bound the tasks of a server. A zero field stands for its default.
type TaskOptions struct {
	// Workers is how many run at once; [task.DefaultWorkers].
	Workers int
	// Capacity is how many are known, finished ones included; [task.DefaultCapacity].
	Capacity int
	// Retain is how many finished ones are kept; as many as the capacity allows.
	Retain int
	// TTL is how long a finished one is kept; [task.DefaultTTL].
	TTL time.Duration
}

func (l *Limits) defaults() {
	if l.Clients <= 0 {
		l.Clients = 16384
	}
	if l.Requests <= 0 {
		l.Requests = 16384
	}
	if l.Subscriptions <= 0 {
		l.Subscriptions = 65536
	}
	if l.Objects <= 0 {
		l.Objects = 65536
	}
}

// Server owns state dicts and lets other processes of the host use them in place. Its methods are safe for concurrent use.
type Server struct {
	opts    ServerOptions
	id      string
	log     *slog.Logger
	started time.Time
	sock    *socket
	devices deviceSet
	books   *catalog.Catalog
	exports exports

	registry *Registry
	results  *cache.Cache[*result]
	tasks    *task.Manager[*outcome]
	objects  objects
	turns    turns

	requests atomic.Uint64
	failures atomic.Uint64

	mu       sync.Mutex
	sessions map[*session]struct{}
	nextID   uint64
	closing  bool
	done     chan struct{} // closed when the last session has gone after closing
}

// NewServer binds the socket and returns an owner that has published nothing yet. Clients that connect before Serve wait in the
// kernel's queue, so publishing first means that nobody finds the owner empty. Errors: [ErrInUse] for a socket with a
// live owner, [ErrPermission] for a directory that others may write, [ErrInvalid] for options that make no sense.
func NewServer(opts ServerOptions) (*Server, error) {
	opts.Limits.defaults()
	if opts.Logger == nil {
		opts.Logger = quiet(slog.Default())
	}
	devices, err := newDeviceSet(opts.Devices)
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, log: opts.Logger, id: newID(), started: time.Now(), devices: devices,
		sessions: map[*session]struct{}{}, done: make(chan struct{}), registry: opts.Registry,
	}
	s.results = cache.New(cache.Options[*result]{
		Entries: opts.Results.Entries, Bytes: opts.Results.Bytes, TTL: opts.Results.TTL,
		Cost: func(r *result) int64 { return r.payload.bytes() }, OnEvict: func(_ cache.Key, r *result) { r.release() },
	})
	s.tasks = task.New(task.Options[*outcome]{
		Workers: opts.Tasks.Workers, Capacity: opts.Tasks.Capacity, Retain: opts.Tasks.Retain, TTL: opts.Tasks.TTL,
		Share: shareOutcome, Release: releaseOutcome,
	})
	s.books = catalog.New(catalog.Options{Retain: opts.Retain, Freed: s.freed})
	if s.sock, err = bind(&s.opts); err != nil {
		return nil, err
	}
	return s, nil
}

// freed is told by the books of a version whose memory was given back.
func (s *Server) freed(name string, version uint64, sd *module.StateDict, err error) {
	s.exports.drop(sd)
	if err != nil {
		s.log.Warn("memory was not given back cleanly", "name", name, "version", version, "error", err)
		return
	}
	s.log.Info("freed", "name", name, "version", version)
}

// bind makes the socket that the options ask for.
func bind(opts *ServerOptions) (*socket, error) {
	if opts.Listener != nil {
		if opts.Socket == "" {
			opts.Socket = opts.Listener.Addr().String()
		}
		return &socket{path: opts.Socket, listener: opts.Listener}, nil
	}
	if opts.Socket == "" {
		path, err := SocketPath("", 0)
		if err != nil {
			return nil, err
		}
		opts.Socket = path
	}
	return listen(opts.Socket)
}

// newID is a name that no other server of this host has.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// ID names this server; a restarted owner has another one.
func (s *Server) ID() string { return s.id }

// Socket is the path that clients dial.
func (s *Server) Socket() string { return s.opts.Socket }

// Serve accepts clients until Shutdown or Close, and then returns [ErrServerClosed]. Call it once.
func (s *Server) Serve() error {
	for {
		c, err := s.sock.listener.AcceptUnix()
		if err == nil {
			s.admit(c)
			continue
		}
		if s.isClosing() {
			return ErrServerClosed
		}
		if !temporary(err) {
			return fmt.Errorf("accept on %s: %w", s.opts.Socket, err)
		}
		s.log.Warn("cannot accept a client", "socket", s.opts.Socket, "error", err)
		time.Sleep(10 * time.Millisecond) // out of descriptors: let some go before trying again
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
	// Some who are too many are let in for as long as it takes to tell them why they are not.
	if s.closing || len(s.sessions) >= s.opts.Limits.Clients+turnedAway {
		conn.Close()
		return
	}
	s.nextID++
	ses := newSession(s, conn, s.nextID)
	ses.surplus = len(s.sessions) >= s.opts.Limits.Clients
	s.sessions[ses] = struct{}{}
	go ses.run()
}

// turnedAway is how many clients beyond the limit may be waiting to be told so.
const turnedAway = 64

// forget is called by a session when it has ended.
func (s *Server) forget(ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ses)
	if s.closing && len(s.sessions) == 0 {
		s.finishLocked()
	}
}

func (s *Server) finishLocked() {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// Shutdown stops accepting, tells every client goodbye, lets requests and tasks in flight end, and frees what the server owns. Idle clients
// do not hold it up. When ctx ends first, what is still running is cancelled and the cause of ctx is returned; a function that does not
// heed its context is not waited for. Memory that clients have attached stays theirs.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, ses := range s.beginClose() {
		ses.goodbye()
	}
	err := s.tasks.Shutdown(ctx)
	select {
	case <-s.done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return errors.Join(err, s.Close())
}

// Close cuts every client off, cancels what runs and frees what the server owns. Functions that do not heed their context are not waited
// for; what they return is given back when they do. A second Close is nil.
func (s *Server) Close() error {
	for _, ses := range s.beginClose() {
		ses.cut()
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	s.tasks.Shutdown(now) // its error is that of now
	s.results.Close(now)
	select {
	case <-s.done:
	case <-time.After(closeGrace):
		s.log.Warn("functions of endpoints go on after the server has closed", "socket", s.opts.Socket)
	}
	return s.books.Close()
}

// closeGrace is how long Close waits for functions to heed their context.
const closeGrace = time.Second

// beginClose stops accepting and returns the sessions there are.
func (s *Server) beginClose() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.closing = true
		s.sock.close()
	}
	if len(s.sessions) == 0 {
		s.finishLocked()
	}
	list := make([]*session, 0, len(s.sessions))
	for ses := range s.sessions {
		list = append(list, ses)
	}
	return list
}
