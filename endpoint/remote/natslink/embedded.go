package natslink

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// Defaults of an embedded server. NATS would use three quarters of the machine's memory.
const (
	DefaultMaxMemory  = 256 << 20
	DefaultMaxPayload = 1 << 20
)

// DefaultSyncInterval is the default of SyncInterval. NATS would use two minutes.
const DefaultSyncInterval = 10 * time.Second

// leastStore is the minimum of the default of MaxStore.
const leastStore = 16 << 30

// startTimeout limits the start of a server. Recovering a large store takes most of this time.
const startTimeout = 30 * time.Second

// startTick is the interval at which started checks whether the server is ready or has failed.
const startTick = 100 * time.Millisecond

// ownConnections is the number of connections of this process, which MaxConnections does not count.
const ownConnections = 4

// leastPing is the minimum time between pings.
const leastPing = time.Second

// tlsTimeout limits the handshake with a client.
const tlsTimeout = 10 * time.Second

// ServerOptions configures the store and the listener of an embedded server.
type ServerOptions struct {
	// Name is the server's name in its cluster and logs. Empty means the host's name.
	Name string
	// Store is the folder of the server's streams. It is created with mode 0700 if it is missing. Empty is an error
	// without Cluster, because acknowledged data must survive a restart.
	Store string
	// Cluster, if its URLs are not empty, makes the server a leaf node of a cluster. It then has no streams: its clients use
	// those of the cluster, as far as Admit permits.
	Cluster Leaf
	// Listen is a TCP address. If it is empty, only this process can connect. Port 0 selects a free port.
	Listen string
	// Token is the token that clients of Listen must present. It is required unless the address is a loopback address.
	Token string
	// TLS configures TLS for clients of Listen. Nil means no TLS.
	TLS *tls.Config
	// Admit, if not nil, replaces Token. It returns a client that may connect, or an error. Its arguments are the
	// client's token, the state of its TLS connection (nil without TLS) and the addresses of both ends.
	Admit func(token string, state *tls.ConnectionState, remote, local net.Addr) (Client, error)
	// Recheck, if not nil, is called every second for each admitted client. The client is disconnected if the result
	// differs from that of Admit, or is an error. Its arguments are the client's token and the state of its TLS
	// connection. It is not called if a client has neither.
	Recheck func(token string, state *tls.ConnectionState) (Client, error)
	// Connected, if not nil, is called for each client that is admitted.
	Connected func(c Client, remote net.Addr)
	// Changed, if not nil, is called for each change of a stream that the gate has forwarded for a client with scopes.
	// The advisories of NATS do not name that client.
	Changed func(c Client, subject string)
	// MaxConnections limits the clients of Listen. 0 means the default of NATS, 65,536.
	MaxConnections int
	// Stall is the time after which a client that reads nothing, or does not finish a message, is disconnected. The client
	// must finish a message within two stall times, because the server then has no answer to its pings. 0 means the
	// defaults of NATS.
	Stall time.Duration
	// Pending limits the bytes that wait for clients that read slowly. The clients with the most are disconnected if all clients of
	// Admit together exceed it. A client may have a quarter, at most 64 MiB. 0 means 64 MiB for each client and no other limit.
	Pending int64
	// AllowAll admits every client that can reach Listen, even on an address that is not a loopback address.
	AllowAll bool
	// MaxStore, MaxMemory and MaxPayload limit the bytes of streams on disk, of streams in memory, and of one message.
	// A stream with a limit counts with its limit, also while it is empty. Zero means the defaults; for MaxStore that is
	// three quarters of the disk, at least 16 GiB.
	MaxStore, MaxMemory int64
	MaxPayload          int32
	// SyncAlways makes the server sync every message to the disk before it acknowledges it. Otherwise it syncs every
	// SyncInterval: a killed process loses nothing, but a power failure may lose the messages of the last interval.
	SyncAlways bool
	// SyncInterval is the time between syncs to the disk. Zero means DefaultSyncInterval.
	SyncInterval time.Duration
	// Logger receives the server's warnings and errors. Nil means slog.Default().
	Logger *slog.Logger
}

// Client is a client of an embedded server.
type Client struct {
	// Name is the name that NATS reports, for example in its advisories.
	Name string
	// Key identifies the client and its rights.
	Key string
	// Identity identifies the client whatever its rights. Its message ids and consumers are separate from those of other
	// identities. Empty means Key.
	Identity string
	// Scopes limits the client. nil means no limit.
	Scopes *rights.Scopes
	// Count, if not nil, is called for each request of a client with scopes: an item, or a request to JetStream. Its error
	// refuses the request with status 429. Pulls, acknowledgements and the pieces of large bodies are not counted.
	Count func() error
}

// Server is a NATS server with JetStream in this process.
type Server struct {
	ns    *server.Server
	token string
	leaf  bool       // it uses the streams of a cluster
	lock  *os.File   // locks the store; the kernel releases it when the process ends; nil for a leaf
	gate  *nats.Conn // nil unless clients are admitted by Admit
	stop  sync.Once

	endRecheck context.CancelFunc // nil unless clients are admitted by Admit
	recheck    sync.WaitGroup
}

// Start starts an embedded server and waits until it is ready. The caller ends it with Close.
func Start(opts ServerOptions) (*Server, error) {
	config, err := opts.config()
	if err != nil {
		return nil, err
	}
	token := opts.Token
	var auth *allowed
	if opts.Admit != nil {
		token = rand.Text()
		auth = &allowed{own: token, admit: opts.Admit, connected: opts.Connected, sessions: make(map[uint64]session)}
		config.Authorization, config.CustomClientAuthentication = "", auth
	}
	var lock *os.File
	if config.JetStream {
		if lock, err = lockStore(config.StoreDir); err != nil {
			return nil, err
		}
	}
	ns, err := server.NewServer(config)
	if err != nil {
		_ = lock.Close() // of a nil file: an error, without effect
		return nil, fmt.Errorf("start the embedded NATS server: %w", err)
	}
	if !config.JetStream {
		if err := mapDomain(ns.GlobalAccount(), opts.Cluster.Domain); err != nil {
			return nil, fmt.Errorf("start the embedded NATS server: %w", err)
		}
	}
	if auth != nil {
		auth.listener.Store(ns)
		auth.accounts.ns, auth.accounts.changed, auth.accounts.domain = ns, opts.Changed, opts.Cluster.Domain
	}
	s := &Server{ns: ns, token: token, leaf: !config.JetStream, lock: lock}
	log := natsLogger{log: orDefault(opts.Logger), failed: make(chan string, 1)}
	ns.SetLoggerV2(log, false, false, false)
	ns.Start()
	if err := log.started(ns); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("start the embedded NATS server with store %s: %w", opts.Store, err)
	}
	if config.JetStream && !ns.JetStreamEnabled() {
		_ = s.Close()
		return nil, fmt.Errorf("the embedded NATS server could not open its store %s: see its log", opts.Store)
	}
	if auth != nil {
		if s.gate, err = s.Connect(nats.Name("sharedtensor-gate")); err == nil {
			err = auth.accounts.serveGate(s.gate)
		}
		if err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("start the embedded NATS server: %w", err)
		}
	}
	if auth != nil {
		ctx, cancel := context.WithCancel(context.Background())
		s.endRecheck = cancel
		if opts.Recheck != nil {
			s.recheck.Go(func() { auth.run(ctx, opts.Recheck) })
		}
		if opts.Pending > 0 {
			s.recheck.Go(func() { auth.boundPending(ctx, opts) })
		}
	}
	return s, nil
}

// config converts the options to NATS's options, or returns an error that names the invalid one.
func (o ServerOptions) config() (*server.Options, error) {
	name := o.Name
	if name == "" {
		name, _ = os.Hostname()
	}
	config := &server.Options{ServerName: name, NoSigs: true, DontListen: o.Listen == "", MaxPayload: cmp.Or(o.MaxPayload, DefaultMaxPayload)}
	var err error
	if o.Cluster.URLs != "" {
		config.LeafNode, err = o.Cluster.options()
	} else {
		err = o.storeStreams(config)
	}
	if err != nil || o.Listen == "" {
		return config, err
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("address of the embedded NATS server: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port of the embedded NATS server: %w", err)
	}
	if o.Token == "" && o.Admit == nil && !o.AllowAll && !local.Loopback(host) {
		return nil, fmt.Errorf("the embedded NATS server listens on %s, which is not a loopback address: set a token", o.Listen)
	}
	if o.MaxConnections > 0 {
		config.MaxConn = o.MaxConnections + ownConnections
	}
	if o.Stall > 0 {
		config.PingInterval, config.MaxPingsOut = max(o.Stall/2, leastPing), 2
		config.WriteDeadline, config.WriteTimeout = o.Stall, server.WriteTimeoutPolicyRetry // a client that reads slowly remains
	}
	if o.Pending > 0 {
		config.MaxPending = o.clientPending()
	}
	config.Host, config.Port, config.Authorization = host, int(number), o.Token
	if o.TLS != nil {
		config.TLSConfig, config.TLSTimeout = o.TLS, tlsTimeout.Seconds()
	}
	if number == 0 {
		config.Port = server.RANDOM_PORT
	}
	return config, nil
}

// storeStreams configures the store of the server's streams.
func (o ServerOptions) storeStreams(config *server.Options) error {
	if o.Store == "" {
		return errors.New("the embedded NATS server needs a store: set ServerOptions.Store")
	}
	if err := os.MkdirAll(o.Store, 0o700); err != nil {
		return fmt.Errorf("create the store of the embedded NATS server: %w", err)
	}
	store, err := filepath.Abs(o.Store)
	if err != nil {
		return fmt.Errorf("store of the embedded NATS server: %w", err)
	}
	config.JetStream, config.StoreDir, config.SyncAlways = true, store, o.SyncAlways
	config.SyncInterval = cmp.Or(o.SyncInterval, DefaultSyncInterval)
	config.JetStreamMaxStore, config.JetStreamMaxMemory = cmp.Or(o.MaxStore, max(leastStore, diskSize(store)/4*3)), cmp.Or(o.MaxMemory, DefaultMaxMemory)
	return nil
}

// URL returns the address for clients in other processes, or "" if the server does not listen.
func (s *Server) URL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return s.ns.ClientURL()
}

// Connect returns an in-process connection to the server. The caller closes it.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	return Connect("", append([]nats.Option{nats.InProcessServer(s.ns), nats.Token(s.token)}, opts...)...)
}

// Close stops the server and waits until its files are written and closed. A second call does nothing.
func (s *Server) Close() error {
	s.stop.Do(func() {
		if s.endRecheck != nil {
			s.endRecheck()
			s.recheck.Wait()
		}
		if s.gate != nil {
			s.gate.Close()
		}
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
		_ = s.lock.Close()
	})
	return nil
}

// allowed authenticates clients with ServerOptions.Admit. This process connects with a secret token.
type allowed struct {
	own       string
	admit     func(token string, state *tls.ConnectionState, remote, local net.Addr) (Client, error)
	connected func(c Client, remote net.Addr) // may be nil
	listener  atomic.Pointer[server.Server]
	accounts  accounts

	mu       sync.Mutex
	sessions map[uint64]session // admitted clients by connection id
}

// Check implements server.Authentication.
func (a *allowed) Check(c server.ClientAuthentication) bool {
	token := c.GetOpts().Token
	if admission.SameSecret(token, a.own) {
		return true
	}
	ns := a.listener.Load()
	if ns == nil {
		return false
	}
	client, err := a.admit(token, c.GetTLSConnectionState(), c.RemoteAddress(), ns.Addr())
	if err != nil {
		return false
	}
	user := &server.User{Username: client.Name}
	if client.Scopes != nil && !client.Scopes.All() {
		own, err := a.accounts.of(client)
		if err != nil {
			ns.Errorf("%v", err)
			return false
		}
		user.Account, user.Permissions = own.account, own.permissions
	}
	c.RegisterUser(user)
	a.record(c.GetID(), session{token, c.GetTLSConnectionState(), client.Key})
	if a.connected != nil {
		a.connected(client, c.RemoteAddress())
	}
	return true
}

// natsLogger passes the server's log to slog. Notices become debug messages, because NATS logs many of them.
type natsLogger struct {
	log    *slog.Logger
	failed chan string // receives the first fatal error
}

// started waits until the server is ready. A server that fails, for example because its port is in use, reports the
// reason only in its log.
func (l natsLogger) started(ns *server.Server) error {
	for end := time.Now().Add(startTimeout); ; {
		if ns.ReadyForConnections(startTick) {
			return nil
		}
		select {
		case why := <-l.failed:
			return errors.New(why)
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("no answer within %v", startTimeout)
		}
	}
}

func (l natsLogger) Noticef(format string, v ...any) {
	l.log.Debug("nats: " + fmt.Sprintf(format, v...))
}
func (l natsLogger) Debugf(format string, v ...any) {
	l.log.Debug("nats: " + fmt.Sprintf(format, v...))
}
func (l natsLogger) Tracef(format string, v ...any) {
	l.log.Debug("nats: " + fmt.Sprintf(format, v...))
}
func (l natsLogger) Warnf(format string, v ...any) { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }
func (l natsLogger) Errorf(format string, v ...any) {
	l.log.Error("nats: " + fmt.Sprintf(format, v...))
}
func (l natsLogger) Fatalf(format string, v ...any) {
	why := fmt.Sprintf(format, v...)
	l.log.Error("nats: " + why)
	select {
	case l.failed <- why:
	default:
	}
}

func orDefault(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.Default()
	}
	return log
}
