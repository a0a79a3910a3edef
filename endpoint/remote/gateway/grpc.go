package gateway

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission/grpcguard"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// handshakePatience limits the TLS handshake and the first frames of a connection.
const handshakePatience = 10 * time.Second

// newGRPCServer returns the server of the gRPC listener, without services. Options of components precede those of the
// gateway.
func (g *Gateway) newGRPCServer() *grpc.Server {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(g.maxMessage())), // the guard has the limit of each client
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(min(handshakePatience, g.config.Stall)),
		grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))), // reusing goroutines avoids growing a stack for each call
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		// The server disconnects clients that ping more often than allowed. Clients commonly ping every ten seconds.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	var creds credentials.TransportCredentials
	if config := g.ids.tlsConfig("h2"); config != nil {
		creds = credentials.NewTLS(config)
	}
	opts = append(opts, g.guard.ServerOptions(creds)...)
	opts = append(opts, grpc.ChainStreamInterceptor(g.stream))
	for _, c := range g.components {
		if configurer, ok := c.(GRPCConfigurer); ok {
			opts = append(opts, configurer.GRPCServerOptions()...)
		}
	}
	return grpc.NewServer(opts...)
}

// maxMessage returns the largest message of any client. A policy may permit more than --max-request.
func (g *Gateway) maxMessage() int64 {
	if g.ids.policy == nil {
		return int64(g.config.MaxRequest)
	}
	return max(int64(g.config.MaxRequest), rights.MaxMessage)
}

// reflected registers services through the guard and reports those of the server for reflection.
type reflected struct {
	grpc.ServiceRegistrar
	*grpc.Server
}

// RegisterService implements grpc.ServiceRegistrar.
func (r reflected) RegisterService(desc *grpc.ServiceDesc, implementation any) {
	r.ServiceRegistrar.RegisterService(desc, implementation)
}

func (g *Gateway) registerReflection() {
	reflection.Register(reflected{g.services, g.grpcServer})
}

// maxUnproven limits the gRPC connections without an authenticated client.
const maxUnproven = 256

func (g *Gateway) newGuard() *grpcguard.Guard {
	opts := grpcguard.Options{Controller: g.admitted, MessageBytes: int64(g.config.MaxRequest), Admit: g.admitGRPC, Unary: g.unary}
	if !g.ids.open() || g.ids.byUser() {
		opts.Unproven = maxUnproven
	}
	if g.ids.byUser() {
		opts.Proven = func(remote net.Addr) bool { return admission.CheckUser(remote) == nil }
	}
	opts.Refused = func(method string, err error) {
		g.calls.Observe("grpc", strings.TrimPrefix(method, "/"), status.Code(admission.Status(err)).String(), 0)
	}
	return grpcguard.New(opts)
}

// healthCheck is the method of probes. A watch, which lasts, needs an identity.
const healthCheck = "/grpc.health.v1.Health/Check"

// admitGRPC identifies the sender of a call by its headers. Health checks need no identity.
func (g *Gateway) admitGRPC(ctx context.Context, method string, header metadata.MD) (Identity, func() bool, error) {
	authorization, state := first(header.Get("authorization")), tlsState(ctx)
	id, err := g.ids.identify(authorization, state, admission.PeerFrom(ctx))
	if err != nil && method != healthCheck {
		return id, nil, admission.Status(err)
	}
	if need, known := rights.Calls[method]; known && need != (rights.Need{}) {
		if err := g.check(id, need, ""); err != nil {
			return id, nil, admission.Status(err)
		}
	}
	return id, g.validity(id, authorization, state), nil
}

// unary is the interceptor of all unary calls.
func (g *Gateway) unary(ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (out any, err error) {
	begin := time.Now()
	ctx, used := withTarget(ctx)
	g.runningGRPC.Inc()
	defer g.runningGRPC.Dec()
	defer func() { err = g.observeGRPC(ctx, info.FullMethod, used, begin, err, recover()) }()
	ctx = withGRPCTrace(ctx)
	return next(ctx, in)
}

// stream is the interceptor of all streaming calls.
func (g *Gateway) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	begin := time.Now()
	ctx, used := withTarget(ss.Context())
	g.runningGRPC.Inc()
	defer g.runningGRPC.Dec()
	defer func() { err = g.observeGRPC(ctx, info.FullMethod, used, begin, err, recover()) }()
	ctx = withGRPCTrace(ctx)
	if strings.HasPrefix(info.FullMethod, "/grpc.") {
		// Clients keep health and reflection streams open. These streams would delay shutdown for the whole drain
		// period.
		var end context.CancelFunc
		ctx, end = untilEnd(ctx, g.serving)
		defer end()
	}
	return next(srv, &streamWithContext{ss, ctx})
}

// streamWithContext is a stream with a context that carries the trace.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *streamWithContext) Context() context.Context { return s.ctx }

// withGRPCTrace adds the trace of a call to ctx.
func withGRPCTrace(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	ctx = withTrace(ctx, first(md.Get(intercept.TraceParent)), strings.Join(md.Get(intercept.TraceState), ","))
	return withCorrelation(ctx, first(md.Get(correlationHeader)))
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// tlsState returns the TLS state of the call's connection, or nil without TLS.
func tlsState(ctx context.Context) *tls.ConnectionState {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := grpcguard.Inner(p).(credentials.TLSInfo); ok {
			return &info.State
		}
	}
	return nil
}

// observeGRPC counts a call and converts a panic to an error.
func (g *Gateway) observeGRPC(ctx context.Context, method string, used *target, begin time.Time, err error, panicked any) error {
	trace := traceID(ctx)
	if panicked != nil {
		g.log.Error("a handler panicked", "method", method, "trace_id", trace, "correlation_id", CorrelationFrom(ctx), "panic", panicked, "stack", string(debug.Stack()))
		err = status.Errorf(codes.Internal, "internal error; see the gateway's log for trace_id %s", trace)
	}
	code := "ok"
	if err != nil {
		code = status.Code(admission.Status(err)).String()
	}
	d := time.Since(begin)
	g.calls.Observe("grpc", strings.TrimPrefix(method, "/"), code, d)
	g.clients.observe(IdentityFrom(ctx), used, code != "ok", d)
	level := slog.LevelInfo
	if strings.HasPrefix(method, "/grpc.health.") { // probes
		level = slog.LevelDebug
	}
	if g.access.Enabled(ctx, level) {
		remote := ""
		if peer := admission.PeerFrom(ctx); peer != nil {
			remote = peer.String()
		}
		g.access.Log(ctx, level, "access", "protocol", "grpc", "method", method, "status", code, "seconds", d.Seconds(), "remote", remote, "identity", IdentityFrom(ctx).Name,
			"trace_id", trace, "correlation_id", CorrelationFrom(ctx))
	}
	return err
}

// stopGRPC waits for calls to end until ctx ends, then stops the server.
func stopGRPC(ctx context.Context, s *grpc.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.Stop() // also ends GracefulStop
		<-done
	}
}
