package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// closePatience is what each component gets to close when the time for requests is over.
const closePatience = 5 * time.Second

// Options say what a gateway serves.
type Options struct {
	// Config is checked by New. Begin with DefaultConfig.
	Config Config
	// Components are what the gateway offers, in the order in which they are registered.
	Components []Component
	// Devices are what the owner's memory can be mapped on. Borrowed: they must outlive Run. Without any, host memory
	// is opened.
	Devices []driver.Device
	// Registry has functions of the embedding program, which go before the owner's of the same name; nil for none.
	// Borrowed.
	Registry *endpoint.Registry
	// Version is shown to people and in metrics; empty for the version of the module.
	Version string
	// Logger gets what operators should know. Nil stands for slog.Default().
	Logger *slog.Logger
}

// Gateway is one gateway. New makes it, Run runs it once.
type Gateway struct {
	config     Config
	components []Component
	registry   *endpoint.Registry
	version    string
	log        *slog.Logger
	started    time.Time

	ids      *identities
	devices  []driver.Device
	arrivals driver.Device
	owner    *ownerLink
	metrics  *prometheus.Registry
	calls    *Calls
	mux      *http.ServeMux

	http, grpc *boundedListener // nil where off
	httpServer *http.Server
	grpcServer *grpc.Server
	health     *healthBoard
	page       *page
	natsServer *natslink.Server // nil unless embedded
	nats       *nats.Conn       // nil where off
	debug      *http.Server     // nil where off

	requests    context.Context // of all requests: ends when the time to drain is over
	endRequests context.CancelFunc
	background  sync.WaitGroup
	draining    atomic.Bool
	ready       chan struct{}
}

// New checks the options. It opens nothing.
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
	return &Gateway{
		config: opts.Config, components: opts.Components, registry: opts.Registry, devices: opts.Devices, log: log,
		version: orString(opts.Version, endpoint.Version()), mux: http.NewServeMux(), ready: make(chan struct{}),
	}, nil
}

// Ready is closed when the gateway serves on all its listeners, which does not wait for an owner.
func (g *Gateway) Ready() <-chan struct{} { return g.ready }

// Addresses are the listeners as they were bound. Valid once Ready is closed.
func (g *Gateway) Addresses() Addresses {
	a := Addresses{HTTP: addressOf(g.http), GRPC: addressOf(g.grpc)}
	switch {
	case g.natsServer != nil:
		a.NATS = g.natsServer.URL()
	case g.nats != nil:
		a.NATS = g.nats.ConnectedUrlRedacted()
	}
	return a
}

// Run serves until ctx ends, drains and returns nil; or returns why it could not begin, or a listener's error. Call it
// once.
func (g *Gateway) Run(ctx context.Context) (err error) {
	g.started = time.Now()
	// Requests outlive ctx: they get the time of Drain to end.
	g.requests, g.endRequests = context.WithCancel(context.WithoutCancel(ctx))
	defer g.endRequests()
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
	}()
	for _, step := range []func(ctx context.Context) (func() error, error){
		g.openIdentities, g.openDevices, g.openOwner, g.openNATS, g.openListeners, g.openServers, g.openComponents,
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

func (g *Gateway) openIdentities(context.Context) (_ func() error, err error) {
	if g.config.Insecure {
		g.log.Warn("--insecure: whoever reaches a listener may use everything, and can read what others send")
	}
	g.ids, err = newIdentities(&g.config, g.log)
	return nil, err
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
	conn, err := natslink.Connect(g.config.NATS, opts...)
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	g.nats = conn
	return func() error { conn.Close(); return nil }, nil
}

func (g *Gateway) embedNATS() (func() error, error) {
	opts := natslink.ServerOptions{Store: filepath.Join(g.config.Store, "nats"), Listen: g.config.NATSListen, Logger: g.log}
	switch {
	case opts.Listen == Off:
		opts.Listen = ""
	case g.config.ReadOnly:
		g.log.Warn("--read-only: the embedded NATS server does not listen, for its clients could write")
		opts.Listen = ""
	}
	if opts.Listen != "" {
		opts.TLS, opts.AllowAll = g.ids.tlsConfig(), g.ids.open() && g.config.Insecure
		if !g.ids.open() {
			opts.Allow = g.ids.allowNATS
		}
	}
	server, err := natslink.Start(opts)
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	conn, err := server.Connect(nats.Name("sharedtensor-gateway"))
	if err != nil {
		return server.Close, fmt.Errorf("--nats: %w", err)
	}
	g.natsServer, g.nats = server, conn
	return func() error { conn.Close(); return server.Close() }, nil
}

// checkNATS is nil while there is a NATS server that keeps what it is given, or none is wanted.
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

// openListeners binds everything before anything serves, so that a port that is taken is known at once.
func (g *Gateway) openListeners(context.Context) (_ func() error, err error) {
	var debug *boundedListener
	undo := func() error {
		var errs []error
		for _, l := range []*boundedListener{g.http, g.grpc, debug} {
			if l != nil {
				// A server that stopped has closed its listener.
				_ = l.Close()
			}
		}
		return errors.Join(errs...)
	}
	if g.http, err = listen("http", g.config.HTTP, g.config.MaxConnections); err != nil {
		return undo, err
	}
	if g.grpc, err = listen("grpc", g.config.GRPC, g.config.MaxConnections); err != nil {
		return undo, err
	}
	if debug, err = listen("debug", g.config.Debug, 16); err != nil {
		return undo, err
	}
	if debug != nil {
		g.debug = newDebugServer(debug)
		g.background.Go(func() { _ = g.debug.Serve(debug) })
	}
	return undo, nil
}

// openServers makes the servers and hooks the gateway's own handlers in.
func (g *Gateway) openServers(context.Context) (func() error, error) {
	g.metrics = newMetrics(g.version)
	g.calls = newCalls(g.metrics)
	g.registerGauges()
	g.health = newHealthBoard(g)
	g.page = newPage(g)
	if g.http != nil {
		g.httpServer = g.newHTTPServer()
		g.httpServer.RegisterOnShutdown(g.page.stop)
		g.health.handle(g.mux)
		g.page.handle(g.mux)
		g.mux.Handle("GET /metrics", g.metricsHandler())
	}
	if g.grpc != nil {
		g.grpcServer = g.newGRPCServer()
		g.health.registerGRPC(g.grpcServer)
	}
	return func() error {
		if g.grpcServer != nil {
			g.grpcServer.Stop() // its goroutines are there before it serves; a second time it does nothing
		}
		return nil
	}, nil
}

// openComponents registers the components; what is undone closes those that were begun, the last first.
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
		registerReflection(g.grpcServer)
	}
	return undo, nil
}

// env is what a component gets.
func (g *Gateway) env(c Component) (*Env, error) {
	env := &Env{
		Owner: g.owner, Devices: g.devices, Arrivals: g.arrivals, NATS: g.nats, Metrics: g.metrics, Calls: g.calls, Logger: g.log.With("component", c.Name()),
		ReadOnly: g.config.ReadOnly, MaxRequest: int64(g.config.MaxRequest), Stall: g.config.Stall, Advertise: g.Addresses(), Version: g.version,
	}
	if g.httpServer != nil {
		env.HTTP = g.mux
	}
	if g.grpcServer != nil {
		env.GRPC = g.grpcServer
	}
	if g.config.Store != "" {
		env.Store = filepath.Join(g.config.Store, c.Name())
		if err := os.MkdirAll(env.Store, 0o700); err != nil {
			return nil, fmt.Errorf("--store: %w", err)
		}
	}
	return env, nil
}

// serve opens the listeners to requests and waits until ctx ends or one of them fails.
func (g *Gateway) serve(ctx context.Context) error {
	failed := make(chan error, 2)
	if g.httpServer != nil {
		g.background.Go(func() { failed <- g.serveHTTP() })
	}
	if g.grpcServer != nil {
		g.background.Go(func() { failed <- g.grpcServer.Serve(g.grpc) })
	}
	watching, stopWatching := context.WithCancel(ctx)
	g.background.Go(func() { g.health.run(watching) })
	a := g.Addresses()
	g.log.Info("serving", "http", a.HTTP, "grpc", a.GRPC, "nats", a.NATS, "owner", g.owner.path(), "version", g.version)
	close(g.ready)
	var err error
	select {
	case <-ctx.Done():
		g.log.Info("stopping: requests in flight may end", "within", g.config.Drain)
	case err = <-failed:
		err = fmt.Errorf("a listener failed: %w", err)
	}
	stopWatching()
	g.drain(context.WithoutCancel(ctx))
	return err
}

func (g *Gateway) serveHTTP() error {
	if g.httpServer.TLSConfig != nil {
		return g.httpServer.ServeTLS(g.http, "", "")
	}
	return g.httpServer.Serve(g.http)
}

// drain tells everybody that the gateway goes, lets requests end for as long as Drain, and ends the others.
func (g *Gateway) drain(ctx context.Context) {
	g.draining.Store(true)
	g.health.shutdown()
	ctx, cancel := context.WithTimeout(ctx, g.config.Drain)
	defer cancel()
	var servers sync.WaitGroup
	if g.httpServer != nil {
		servers.Go(func() {
			if err := g.httpServer.Shutdown(ctx); err != nil {
				g.endRequests()
				_ = g.httpServer.Close()
			}
		})
	}
	if g.grpcServer != nil {
		servers.Go(func() { stopGRPC(ctx, g.grpcServer) })
	}
	servers.Wait()
	g.endRequests()
	if g.debug != nil {
		_ = g.debug.Close()
	}
	g.background.Wait()
}
