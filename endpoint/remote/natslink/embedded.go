package natslink

import (
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Defaults of an embedded server. NATS itself would take three quarters of the machine's memory and all of its disk.
const (
	DefaultMaxStore   = 16 << 30
	DefaultMaxMemory  = 256 << 20
	DefaultMaxPayload = 1 << 20
)

// startTimeout bounds how long a server may take until it answers; recovering a large store is what takes time.
const startTimeout = 30 * time.Second

// startTick is how often a server that does not answer yet is asked whether it gave up.
const startTick = 100 * time.Millisecond

// tlsTimeout bounds the handshake with a client.
const tlsTimeout = 10 * time.Second

// ServerOptions says where an embedded server keeps its data and who can reach it.
type ServerOptions struct {
	// Name is the server's name in its cluster and logs; empty stands for the host's name.
	Name string
	// Store is the folder of the server's streams. It is made with mode 0700 where it is missing. Empty is an error:
	// data that was acknowledged must survive a restart.
	Store string
	// Listen is a TCP address; empty means that only this process reaches the server. Port 0 takes a free port.
	Listen string
	// Token is what clients of Listen must present. An address that is not a loopback one needs it.
	Token string
	// TLS is for clients of Listen; nil for none.
	TLS *tls.Config
	// Allow, if not nil, decides by a client's token and the state of its TLS connection (nil without) whether it may
	// connect, instead of Token.
	Allow func(token string, state *tls.ConnectionState) bool
	// AllowAll lets everybody connect who reaches Listen, whatever address that is.
	AllowAll bool
	// MaxStore, MaxMemory and MaxPayload bound the bytes of streams on disk, of streams in memory, and of one message.
	// Zero stands for the defaults.
	MaxStore, MaxMemory int64
	MaxPayload          int32
	// SyncAlways makes the server write every message to the disk before it acknowledges it. Otherwise the disk is
	// synchronised every two minutes: a killed process loses nothing, a power failure may lose what came last.
	SyncAlways bool
	// Logger gets the server's warnings and errors. Nil stands for slog.Default().
	Logger *slog.Logger
}

// Server is a NATS server with JetStream in this process.
type Server struct {
	ns    *server.Server
	token string
	lock  *os.File // of the store; the kernel frees it when the process ends
	stop  sync.Once
}

// Start starts an embedded server and waits until it answers. The caller ends it with Close.
func Start(opts ServerOptions) (*Server, error) {
	config, err := opts.config()
	if err != nil {
		return nil, err
	}
	token := opts.Token
	if opts.Allow != nil {
		token = rand.Text()
		config.Authorization, config.CustomClientAuthentication = "", allowed{token, opts.Allow}
	}
	lock, err := lockStore(config.StoreDir)
	if err != nil {
		return nil, err
	}
	ns, err := server.NewServer(config)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("start the embedded NATS server: %w", err)
	}
	s := &Server{ns: ns, token: token, lock: lock}
	log := natsLogger{log: orDefault(opts.Logger), failed: make(chan string, 1)}
	ns.SetLoggerV2(log, false, false, false)
	ns.Start()
	if err := log.started(ns); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("the embedded NATS server with store %s: %w", opts.Store, err)
	}
	if !ns.JetStreamEnabled() {
		_ = s.Close()
		return nil, fmt.Errorf("the embedded NATS server could not open its store %s: see its log", opts.Store)
	}
	return s, nil
}

// config turns the options into the server's own, or says which of them is wrong.
func (o ServerOptions) config() (*server.Options, error) {
	if o.Store == "" {
		return nil, errors.New("an embedded NATS server needs a folder for its store")
	}
	if err := os.MkdirAll(o.Store, 0o700); err != nil {
		return nil, fmt.Errorf("make the store of the embedded NATS server: %w", err)
	}
	store, err := filepath.Abs(o.Store)
	if err != nil {
		return nil, fmt.Errorf("store of the embedded NATS server: %w", err)
	}
	name := o.Name
	if name == "" {
		name, _ = os.Hostname()
	}
	config := &server.Options{
		ServerName: name, JetStream: true, StoreDir: store, NoSigs: true, NoLog: false, DontListen: o.Listen == "",
		JetStreamMaxStore: orDefaultInt(o.MaxStore, DefaultMaxStore), JetStreamMaxMemory: orDefaultInt(o.MaxMemory, DefaultMaxMemory),
		MaxPayload: orDefaultInt(o.MaxPayload, DefaultMaxPayload), SyncAlways: o.SyncAlways,
	}
	if o.Listen == "" {
		return config, nil
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("address of the embedded NATS server: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port of the embedded NATS server: %w", err)
	}
	if o.Token == "" && o.Allow == nil && !o.AllowAll && !isLoopback(host) {
		return nil, fmt.Errorf("the embedded NATS server listens on %s, which is not a loopback address: set a token", o.Listen)
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

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func orDefaultInt[T int32 | int64](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// URL returns the address that clients of other processes dial, or "" where the server does not listen.
func (s *Server) URL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return s.ns.ClientURL()
}

// Connect returns a connection to the server that does not leave the process. The caller closes it.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	return Connect("", append([]nats.Option{nats.InProcessServer(s.ns), nats.Token(s.token)}, opts...)...)
}

// Close ends the server and waits until its files are written and closed. A second call does nothing.
func (s *Server) Close() error {
	s.stop.Do(func() {
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
		_ = s.lock.Close()
	})
	return nil
}

// allowed is the authentication by ServerOptions.Allow. The process itself has a token that nobody else knows.
type allowed struct {
	own   string
	allow func(token string, state *tls.ConnectionState) bool
}

// Check implements server.Authentication.
func (a allowed) Check(c server.ClientAuthentication) bool {
	token := c.GetOpts().Token
	return subtle.ConstantTimeCompare([]byte(token), []byte(a.own)) == 1 || a.allow(token, c.GetTLSConnectionState())
}

// natsLogger passes the server's words to slog: notices as debug, since NATS has many of them.
type natsLogger struct {
	log    *slog.Logger
	failed chan string // gets the first reason for which the server gives up
}

// started waits until the server answers. A server that gives up, for example because its port is in use, only logs why.
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
			return fmt.Errorf("it did not answer within %v", startTimeout)
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
