package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission/grpcguard"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/internal/logs"
)

// Memory that the budget of requests does not include: messages that are being inflated, and what waits for clients of NATS. Each may
// have this part of --max-in-flight.
const (
	unchargedPart = 4
	maxInflating  = 256 << 20
)

// closePatience is the time that each component has to close after the drain period.
const closePatience = 5 * time.Second

// Options configures a gateway.
type Options struct {
	// Config is the configuration, usually based on DefaultConfig. New checks it.
	Config Config
	// Components are the services of the gateway, in registration order.
	Components []Component
	// Devices are the devices that can map the owner's memory. The gateway borrows them until Run returns. If empty,
	// the gateway opens host memory.
	Devices []driver.Device
	// Registry holds functions of the embedding program, which have priority over owner functions of the same name. It
	// may be nil. The gateway borrows it.
	Registry *endpoint.Registry
	// Version is reported to users and in metrics. The default is the version of the module.
	Version string
	// Logger receives messages for operators. The default is slog.Default().
	Logger *slog.Logger
	// LogLost, if not nil, returns the number of lines that the handler of Logger has dropped, for a metric.
	LogLost func() uint64
}

// Gateway is a gateway that New creates and Run runs once.
type Gateway struct {
	config     Config
	components []Component
	registry   *endpoint.Registry
	version    string
	log        *slog.Logger
	audit      *slog.Logger
	access     *slog.Logger
	files      []*logs.File // of audit and access
	logLost    func() uint64
	// lostRecords counts records of files.
	lostRecords *prometheus.CounterVec
	started     time.Time

	ids      *identities
	admitted *admission.Controller
	digests  modelwire.Digests
	devices  []driver.Device
	arrivals driver.Device
	owner    *ownerLink
	metrics  *prometheus.Registry
	refusals *prometheus.CounterVec
	// runningHTTP and runningGRPC count running requests.
	runningHTTP, runningGRPC prometheus.Gauge
	clients                  clients
	calls                    *Calls
	routes                   routes

	proxies, forwarders networks // of --proxy-protocol and --forwarded-for

	http, grpc, admin *namedListener // nil if off
	httpServer        *http.Server
	adminServer       *http.Server // nil if off
	adminRoutes       routes
	states            map[string]*connStates // of the HTTP servers, by listener
	grpcServer        *grpc.Server
	guard             *grpcguard.Guard
	services          grpc.ServiceRegistrar // registers with grpcServer through the guard
	health            *healthBoard
	page              *page
	natsServer        *natslink.Server // embedded, or the leaf node of a cluster; nil for neither
	nats              *nats.Conn       // nil if off
	debug             *http.Server     // nil if off

	requests    context.Context // parent of all requests; ends with the drain period
	endRequests context.CancelFunc
	serving     context.Context // ends when draining starts
	endServing  context.CancelFunc
	background  sync.WaitGroup
	draining    atomic.Bool
	ready       chan struct{}
}

// New checks the options and returns a gateway. It opens nothing.
func New(opts Options) (*Gateway, error) {
	if err := opts.Config.Check(); err != nil {
		return nil, err
	}
	for _, c := range opts.Components {
		if own, ok := c.(Configurer); ok {
			if err := own.CheckConfig(); err != nil {
				return nil, err
			}
		}
	}
	log := opts.Logger
	if log == nil {
		log = slog.Default()
	}
	proxies, err := parseNetworks(opts.Config.ProxyProtocol)
	if err != nil {
		return nil, err
	}
	forwarders, err := parseNetworks(opts.Config.ForwardedFor)
	if err != nil {
		return nil, err
	}
	return &Gateway{
		proxies: proxies, forwarders: forwarders, adminRoutes: routes{ServeMux: http.NewServeMux()}, states: make(map[string]*connStates),
		config: opts.Config, components: opts.Components, registry: opts.Registry, devices: opts.Devices, log: log,
		version: orString(opts.Version, endpoint.Version()), logLost: opts.LogLost, lostRecords: newLostRecords(),
		routes: routes{ServeMux: http.NewServeMux()}, ready: make(chan struct{}),
	}, nil
}

// Ready returns a channel that is closed when all listeners serve. It does not wait for an owner.
func (g *Gateway) Ready() <-chan struct{} { return g.ready }

// Addresses returns the bound addresses. They are valid once the channel of Ready is closed.
func (g *Gateway) Addresses() Addresses {
	a := Addresses{HTTP: addressOf(g.http), GRPC: addressOf(g.grpc), Admin: addressOf(g.admin)}
	switch {
	case g.natsServer != nil:
		a.NATS = g.natsServer.URL()
	case g.nats != nil:
		a.NATS = hideCredentials(g.nats.ConnectedUrl())
	}
	return a
}

// Routes returns the patterns of the HTTP listener and the methods of the gRPC listener, which start with "grpc ". They
// are complete once the channel of Ready is closed.
func (g *Gateway) Routes() []string {
	routes := slices.Clone(g.routes.patterns)
	if g.guard != nil {
		for _, method := range g.guard.Methods() {
			routes = append(routes, "grpc "+method)
		}
	}
	return routes
}

// routes is a mux that records its patterns and checks the rights of senders.
type routes struct {
	*http.ServeMux
	patterns []string
	guard    func(pattern string, handler http.Handler) http.Handler
}

// Handle implements Mux.
func (r *routes) Handle(pattern string, handler http.Handler) {
	r.ServeMux.Handle(pattern, r.guard(pattern, handler))
	r.patterns = append(r.patterns, pattern)
}

// Run serves until ctx ends, drains, and returns nil. It returns an error if the gateway cannot start or a listener
// fails. It must be called only once.
func (g *Gateway) Run(ctx context.Context) (err error) {
	g.started = time.Now()
	// Requests continue after ctx has ended, for the drain period.
	g.requests, g.endRequests = context.WithCancel(context.WithoutCancel(ctx))
	defer g.endRequests()
	g.serving, g.endServing = context.WithCancel(context.WithoutCancel(ctx))
	defer g.endServing()
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
	}()
	for _, step := range []func(ctx context.Context) (func() error, error){
		g.openLogs, g.openIdentities, g.openDevices, g.openOwner, g.openNATS, g.openListeners, g.openServers, g.openComponents,
	} {
		back, err := step(ctx)
		if back != nil {
			undo = append(undo, back)
		}
		if err != nil {
			return err
		}
	}
	return g.serve(ctx)
}

// openIdentities loads tokens and certificates, and starts the goroutine that cancels calls of revoked identities.
func (g *Gateway) openIdentities(context.Context) (_ func() error, err error) {
	if g.config.Insecure {
		g.log.Warn("--insecure: every client that can connect has full access, and traffic is not encrypted")
	}
	if g.ids, err = newIdentities(&g.config, g.log); err != nil {
		return nil, err
	}
	g.admitted = admission.New(admission.Options{
		Bytes: int64(g.config.MaxInFlight), Rate: admission.Rate{Bytes: int64(g.config.MinRate), Grace: g.config.Stall},
	})
	bulk.LimitInflating(max(1, min(maxInflating, int64(g.config.MaxInFlight)/unchargedPart)))
	checking, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { g.admitted.Run(checking) })
	return func() error { stop(); running.Wait(); return nil }, nil
}

func (g *Gateway) openDevices(context.Context) (func() error, error) {
	var opened []driver.Device
	closeAll := func() error {
		var errs []error
		for _, dev := range opened {
			errs = append(errs, dev.Close())
		}
		return errors.Join(errs...)
	}
	open := func(options ...host.Option) (driver.Device, error) {
		dev, err := host.Open(options...)
		if err != nil {
			return nil, err
		}
		opened = append(opened, dev)
		return dev, nil
	}
	if len(g.devices) == 0 {
		dev, err := open()
		if err != nil {
			return nil, err
		}
		g.devices = []driver.Device{dev}
	}
	g.arrivals = g.devices[0]
	if _, is := g.arrivals.(*host.Device); is {
		var err error
		if g.arrivals, err = open(host.Lazy()); err != nil {
			return closeAll, err
		}
	}
	return closeAll, nil
}

func (g *Gateway) openOwner(context.Context) (_ func() error, err error) {
	if g.owner, err = attachOwner(&g.config, g.devices, g.registry, g.log); err != nil {
		return nil, err
	}
	return g.owner.close, nil
}

// openNATS starts the embedded server or connects to the cluster.
func (g *Gateway) openNATS(context.Context) (func() error, error) {
	switch g.config.NATS {
	case Off:
		return nil, nil
	case Embedded:
		return g.embedNATS()
	}
	opts := []nats.Option{nats.Name("sharedtensor-gateway")}
	if g.config.NATSCredentials != "" {
		opts = append(opts, nats.UserCredentials(g.config.NATSCredentials))
	}
	if g.config.NATSLeaf == "" && g.ids.policy != nil && len(g.ids.policy.get().Scopes()) > 0 {
		g.log.Warn("the policy's read and write have no effect: clients of an external cluster have the permissions of that cluster; --nats-leaf lets clients connect to this gateway instead")
	}
	// A cluster may start later than the gateway, which reports meanwhile that it is not ready.
	opts = append(append(opts, nats.RetryOnFailedConnect(true)), g.config.NATSTLS.Options()...)
	conn, err := natslink.Connect(g.config.NATS, opts...)
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	g.nats = conn
	if g.config.NATSLeaf == "" {
		return func() error { conn.Close(); return nil }, nil
	}
	server, err := natslink.Start(g.natsOptions(natslink.ServerOptions{Cluster: g.config.leaf()}))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("--nats-leaf: %w", err)
	}
	g.natsServer = server
	return func() error { conn.Close(); return server.Close() }, nil
}

func (g *Gateway) embedNATS() (func() error, error) {
	opts := g.natsOptions(natslink.ServerOptions{Store: filepath.Join(g.config.Store, "nats"), MaxStore: int64(g.config.MaxStore),
		SyncAlways: g.config.NATSSync == Always, SyncInterval: time.Duration(g.config.NATSSync),
	})
	server, err := natslink.Start(opts)
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	conn, err := server.Connect(nats.Name("sharedtensor-gateway"))
	if err != nil {
		return server.Close, fmt.Errorf("--nats: %w", err)
	}
	g.natsServer, g.nats = server, conn
	return func() error { conn.Close(); return server.Close() }, g.natsAudit()
}

// natsOptions adds the listener and the clients that it admits to the options of a server.
func (g *Gateway) natsOptions(opts natslink.ServerOptions) natslink.ServerOptions {
	opts.Listen, opts.MaxConnections, opts.Stall, opts.Logger = g.config.NATSListen, g.config.MaxConnections, g.config.Stall, g.log
	opts.Pending = int64(g.config.MaxInFlight) / unchargedPart
	switch {
	case opts.Listen == Off:
		opts.Listen = ""
	case g.config.ReadOnly:
		g.log.Warn("--read-only: the embedded NATS server does not listen because its clients could write")
		opts.Listen = ""
	}
	if opts.Listen != "" {
		opts.TLS, opts.AllowAll = g.ids.tlsConfig(), g.ids.open() && g.config.Insecure
		if !opts.AllowAll {
			opts.Admit, opts.Connected, opts.Changed = g.admitNATS, g.natsConnected, g.natsChanged
		}
		if !g.ids.open() {
			opts.Recheck = func(token string, state *tls.ConnectionState) (natslink.Client, error) {
				return g.admitNATS(token, state, nil, nil)
			}
		}
	}
	return opts
}

// checkNATS returns nil if NATS is off, or if its server is connected and persists data.
func (g *Gateway) checkNATS() error {
	switch {
	case g.nats == nil:
		return nil
	case !g.nats.IsConnected():
		return errors.New("no connection to the NATS server")
	case g.natsServer != nil:
		return g.natsServer.Check()
	}
	return nil
}

// openListeners binds all addresses before any server starts, so that a port conflict is reported immediately.
func (g *Gateway) openListeners(context.Context) (_ func() error, err error) {
	var debug *namedListener
	undo := func() error {
		var errs []error
		for _, l := range []*namedListener{g.http, g.grpc, g.admin, debug} {
			if l != nil {
				// A server that was stopped has already closed its listener.
				_ = l.Close()
			}
		}
		return errors.Join(errs...)
	}
	if g.http, err = g.listen("http", g.config.HTTP, g.config.MaxConnections); err != nil {
		return undo, err
	}
	if g.grpc, err = g.listen("grpc", g.config.GRPC, g.config.MaxConnections); err != nil {
		return undo, err
	}
	if g.admin, err = g.listen("admin", g.config.Admin, maxAdminConnections); err != nil {
		return undo, err
	}
	if g.admin != nil {
		g.admin.Remote = admission.WithUser // for pprof
	}
	if debug, err = g.listen("debug", g.config.Debug, 16); err != nil {
		return undo, err
	}
	if debug != nil {
		debug.Remote = admission.WithUser
		g.debug = g.newDebugServer(debug)
		g.background.Go(func() { _ = g.debug.Serve(debug) })
	}
	return undo, nil
}

// openServers creates the servers and registers the gateway's handlers.
func (g *Gateway) openServers(context.Context) (func() error, error) {
	g.metrics = newMetrics(g.version)
	g.calls, g.refusals = newCalls(g.metrics), newRefusals(g.metrics)
	g.metrics.MustRegister(g.lostRecords)
	if g.logLost != nil {
		g.metrics.MustRegister(newLostLines(g.logLost))
	}
	g.health = newHealthBoard(g)
	g.page = newPage(g)
	if g.http != nil {
		g.routes.guard = g.needs
		g.httpServer = g.newHTTPServer(g.routes.ServeMux, g.http)
		g.httpServer.RegisterOnShutdown(g.page.stop)
		g.page.handle(&g.routes)
		if g.admin == nil {
			g.handleOperators(&g.routes)
		}
	}
	if g.admin != nil {
		g.adminRoutes.guard = g.needs
		g.adminServer = g.newHTTPServer(g.adminRoutes.ServeMux, g.admin)
		g.handleOperators(&g.adminRoutes)
		g.handleProfiles(&g.adminRoutes)
	}
	if g.grpc != nil {
		g.guard = g.newGuard()
		g.grpcServer = g.newGRPCServer()
		g.services = g.guard.Services(g.grpcServer)
		g.health.registerGRPC(g.services)
	}
	g.registerGauges()
	return func() error {
		if g.grpcServer != nil {
			g.grpcServer.Stop() // its goroutines run before it serves; a second call has no effect
		}
		return nil
	}, nil
}

// openComponents registers the components. The returned function closes the registered ones in reverse order.
func (g *Gateway) openComponents(ctx context.Context) (func() error, error) {
	var begun []Component
	undo := func() error {
		var errs []error
		for i := len(begun) - 1; i >= 0; i-- {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
			if err := begun[i].Close(ctx); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", begun[i].Name(), err))
			}
			cancel()
		}
		return errors.Join(errs...)
	}
	for _, c := range g.components {
		env, err := g.env(c)
		if err != nil {
			return undo, err
		}
		begun = append(begun, c)
		if err := c.Register(ctx, env); err != nil {
			return undo, fmt.Errorf("%s: %w", c.Name(), err)
		}
		if checker, ok := c.(Checker); ok {
			g.health.add(c.Name(), checker)
		}
	}
	if g.grpcServer != nil {
		g.registerReflection()
	}
	return undo, nil
}

// env returns the environment of a component.
func (g *Gateway) env(c Component) (*Env, error) {
	env := &Env{
		Owner: g.owner, Devices: g.devices, Arrivals: g.arrivals, NATS: g.nats, Metrics: g.metrics, Calls: g.calls, Logger: g.log.With("component", c.Name()),
		ReadOnly: g.config.ReadOnly, MaxRequest: int64(g.config.MaxRequest), MaxMessage: g.maxMessage(), Stall: g.config.Stall, Admission: g.admitted, Digests: &g.digests, Serving: g.serving, Advertise: g.Addresses(), Version: g.version,
		audit: g.audit, refusals: g.refusals, requireAudit: g.config.RequireAudit,
	}
	if g.ids.policy != nil && g.natsServer != nil {
		env.Scopes = func() []string { return g.ids.policy.get().Scopes() }
	}
	if g.httpServer != nil {
		env.HTTP = &g.routes
	}
	if g.grpcServer != nil {
		env.GRPC = g.services
	}
	if g.config.Store != "" {
		env.Store = filepath.Join(g.config.Store, c.Name())
		if err := os.MkdirAll(env.Store, 0o700); err != nil {
			return nil, fmt.Errorf("--store: %w", err)
		}
	}
	return env, nil
}

// serve accepts requests on all listeners until ctx ends or a listener fails.
func (g *Gateway) serve(ctx context.Context) error {
	failed := make(chan error, 3)
	if g.httpServer != nil {
		g.background.Go(func() { failed <- serveHTTP(g.httpServer, g.http) })
	}
	if g.adminServer != nil {
		g.background.Go(func() { failed <- serveHTTP(g.adminServer, g.admin) })
	}
	if g.grpcServer != nil {
		g.background.Go(func() { failed <- g.grpcServer.Serve(g.grpc) })
	}
	watching, stopWatching := context.WithCancel(ctx)
	g.background.Go(func() { g.health.run(watching) })
	if g.guard != nil {
		g.background.Go(func() { g.guard.Run(g.requests) })
	}
	a := g.Addresses()
	g.log.Info("serving", "http", a.HTTP, "grpc", a.GRPC, "nats", a.NATS, "admin", a.Admin, "owner", g.owner.path(), "version", g.version, "serves", g.ids.access())
	close(g.ready)
	var err error
	select {
	case <-ctx.Done():
		stopWatching()
		g.lameDuck(failed)
	case err = <-failed:
		err = fmt.Errorf("a listener failed: %w", err)
	}
	stopWatching()
	g.drain(context.WithoutCancel(ctx))
	return err
}

func serveHTTP(server *http.Server, l *namedListener) error {
	if server.TLSConfig != nil {
		return server.ServeTLS(l, "", "")
	}
	return server.Serve(l)
}
