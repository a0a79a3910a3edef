package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
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
)

// newGRPCServer returns the server of the gRPC listener, without services. Options of components go before the
// gateway's.
func (g *Gateway) newGRPCServer() *grpc.Server {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(g.config.MaxRequest)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(headerPatience),
		grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))), // a new goroutine has to grow its stack for each call
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		// Clients that ask for a sign of life more often than the server allows are cut off, and the usual settings are
		// ten seconds.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(g.unary),
		grpc.ChainStreamInterceptor(g.stream),
	}
	if config := g.ids.tlsConfig(); config != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(config)))
	}
	for _, c := range g.components {
		if configurer, ok := c.(GRPCConfigurer); ok {
			opts = append(opts, configurer.GRPCServerOptions()...)
		}
	}
	return grpc.NewServer(opts...)
}

func registerReflection(s *grpc.Server) { reflection.Register(s) }

// unary is what every unary call goes through.
func (g *Gateway) unary(ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (out any, err error) {
	begin := time.Now()
	defer func() { err = g.observeGRPC(ctx, info.FullMethod, begin, err, recover()) }()
	if ctx, err = g.enterGRPC(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, in)
}

// stream is what every streaming call goes through.
func (g *Gateway) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	ctx, begin := ss.Context(), time.Now()
	defer func() { err = g.observeGRPC(ctx, info.FullMethod, begin, err, recover()) }()
	if ctx, err = g.enterGRPC(ctx, info.FullMethod); err != nil {
		return err
	}
	return next(srv, &streamWithContext{ss, ctx})
}

// streamWithContext is a stream whose context has the identity and the trace.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *streamWithContext) Context() context.Context { return s.ctx }

// enterGRPC adds trace and identity to the context of a call, or refuses it. Health is told without identity.
func (g *Gateway) enterGRPC(ctx context.Context, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	ctx = withTrace(ctx, first(md.Get(intercept.TraceParent)), strings.Join(md.Get(intercept.TraceState), ","))
	ctx = withCorrelation(ctx, first(md.Get(correlationHeader)))
	id, err := g.ids.identify(first(md.Get("authorization")), tlsState(ctx))
	if err != nil && !strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	return context.WithValue(ctx, identityKey{}, id), nil
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// tlsState is that of the call's connection; nil without TLS.
func tlsState(ctx context.Context) *tls.ConnectionState {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			return &info.State
		}
	}
	return nil
}

// observeGRPC counts a call and makes an error of a panic.
func (g *Gateway) observeGRPC(ctx context.Context, method string, begin time.Time, err error, panicked any) error {
	trace := traceID(ctx)
	if panicked != nil {
		g.log.Error("a handler panicked", "method", method, "trace_id", trace, "correlation_id", CorrelationFrom(ctx), "panic", panicked, "stack", string(debug.Stack()))
		err = status.Errorf(codes.Internal, "internal error; the gateway's log has more under trace_id %s", trace)
	}
	code := "ok"
	if err != nil {
		code = codeOf(err).String()
	}
	d := time.Since(begin)
	g.calls.Observe("grpc", strings.TrimPrefix(method, "/"), code, d)
	if g.log.Enabled(ctx, slog.LevelDebug) {
		g.log.Debug("grpc", "method", method, "code", code, "seconds", d.Seconds(), "identity", IdentityFrom(ctx).Name,
			"trace_id", trace, "correlation_id", CorrelationFrom(ctx))
	}
	return err
}

// codeOf is the code that a caller sees.
func codeOf(err error) codes.Code {
	switch {
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return status.Code(err)
}

// stopGRPC lets calls end until ctx does.
func stopGRPC(ctx context.Context, s *grpc.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.Stop() // which ends GracefulStop too
		<-done
	}
}
