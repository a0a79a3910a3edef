// Package grpcguard admits the calls of a gRPC server before their messages are received.
//
// grpc-go reads, inflates and decodes a message before the interceptors of a unary call run. A [Guard] therefore acts
// earlier. Its tap handler checks the sender when the headers of a call arrive. Its connections count the DATA frames
// of each call as they arrive, and charge them to the sender's budget until the message is processed.
//
//	guard := grpcguard.New(grpcguard.Options{Controller: controller, Admit: admit})
//	server := grpc.NewServer(guard.ServerOptions(credentials)...)
//	guard.Services(server).RegisterService(&desc, implementation)
//	go guard.Run(ctx)
package grpcguard

import (
	"container/list"
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

const (
	// streamsPerConnection limits the concurrent calls of a connection.
	streamsPerConnection = 512
	// anonymousMessage is the maximum message size for unknown clients.
	anonymousMessage = 4 << 10
	// anonymousGrace is the time that unknown clients have to send their message.
	anonymousGrace = time.Second
	// checkEvery is the interval at which unfinished messages are checked.
	checkEvery = 500 * time.Millisecond
)

// Options configures a Guard.
type Options struct {
	// Controller admits calls and holds the budget of their messages.
	Controller *admission.Controller
	// MessageBytes limits a message of a client without a quota of messages. 0 means the client's share of the budget.
	MessageBytes int64
	// Admit returns the sender of a call, and a function that reports whether the sender is still accepted, which may
	// be nil. It must be fast. If it returns an error, which must be a gRPC status, the call is refused.
	Admit func(ctx context.Context, method string, header metadata.MD) (rights.Identity, func() bool, error)
	// Refused is called for each call that is refused before its message, with the registered name of its method or
	// "none". It may be nil.
	Refused func(method string, err error)
	// Unary is the interceptor of unary calls. It may be nil.
	Unary grpc.UnaryServerInterceptor
	// Unproven limits the connections that no known client has used yet. Over the limit, the oldest is closed. 0 means
	// no limit.
	Unproven int
	// Proven reports whether the address alone identifies the connection's client as known. nil means never.
	Proven func(remote net.Addr) bool
}

// Guard admits the calls of one server.
type Guard struct {
	opts Options

	mu       sync.Mutex
	conns    map[*conn]struct{}
	unproven list.List       // *conn, oldest first
	methods  map[string]bool // registered methods
}

// New returns a guard.
func New(opts Options) *Guard {
	return &Guard{opts: opts, conns: make(map[*conn]struct{}), methods: make(map[string]bool)}
}

// ServerOptions returns the options of a server with the given credentials, which may be nil. Register services with
// Services.
func (g *Guard) ServerOptions(creds credentials.TransportCredentials) []grpc.ServerOption {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return []grpc.ServerOption{
		grpc.Creds(guarded{creds, g}),
		grpc.ForceServerCodecV2(bulk.Codec()), // charges decoded messages
		grpc.ReadBufferSize(0),                // connections have their own buffer, see scanner
		grpc.InTapHandle(g.tap),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.ChainStreamInterceptor(g.stream),
	}
}

// Run ends calls whose messages arrive too slowly. It runs until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			g.mu.Lock()
			conns := make([]*conn, 0, len(g.conns))
			for c := range g.conns {
				conns = append(conns, c)
			}
			g.mu.Unlock()
			for _, c := range conns {
				c.each(func(s *stream) { s.check(now) })
				c.checkAnswers(now, g.opts.Controller.Rate.Grace)
			}
		}
	}
}

func (g *Guard) add(c *conn) {
	proven := g.opts.Unproven == 0 || g.opts.Proven != nil && g.opts.Proven(c.RemoteAddr())
	g.mu.Lock()
	g.conns[c] = struct{}{}
	var oldest *conn
	if !proven {
		c.unproven = g.unproven.PushBack(c)
		if g.unproven.Len() > g.opts.Unproven {
			oldest = g.unproven.Front().Value.(*conn)
		}
	}
	g.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // best effort: the transport closes it too
	}
}

func (g *Guard) remove(c *conn) {
	g.prove(c)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// Connections returns the number of connections, and of those that no known client has used.
func (g *Guard) Connections() (all, unproven int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns), g.unproven.Len()
}

// prove removes a connection from the unproven ones, because a known client uses it or it is closed.
func (g *Guard) prove(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.unproven != nil {
		g.unproven.Remove(c.unproven)
		c.unproven = nil
	}
}

type streamKey struct{}

// tap admits a call when its headers arrive.
func (g *Guard) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	g.mu.Lock()
	known := g.methods[info.FullMethodName]
	g.mu.Unlock()
	name := info.FullMethodName
	if !known {
		name = "none"
	}
	ctx, err := g.admit(ctx, info, known)
	if err != nil && g.opts.Refused != nil {
		g.opts.Refused(name, err)
	}
	return ctx, err
}

func (g *Guard) admit(ctx context.Context, info *tap.Info, known bool) (context.Context, error) {
	c := connOf(ctx)
	if c == nil {
		return ctx, status.Error(codes.Internal, "the connection is not guarded")
	}
	ctx = admission.WithConn(ctx, c)
	id, valid, err := g.opts.Admit(ctx, info.FullMethodName, info.Header)
	if err != nil {
		return ctx, err
	}
	if !known {
		return ctx, status.Errorf(codes.Unimplemented, "unknown method %s", info.FullMethodName)
	}
	if id.Known() {
		g.prove(c)
	}
	ctx, call, err := g.opts.Controller.Enter(ctx, id, valid)
	if err != nil {
		return ctx, admission.Status(err)
	}
	pool := g.opts.Controller.Requests
	limit := pool.Limit(id)
	if g.opts.MessageBytes > 0 {
		limit = min(limit, id.MessageLimit(g.opts.MessageBytes))
	}
	s := &stream{call: call, limit: limit, rate: g.opts.Controller.Rate, charged: pool.Open(id), parties: 1}
	if !id.Known() {
		s.limit = anonymousMessage
		s.rate.Grace = min(s.rate.Grace, anonymousGrace)
	}
	call.OnFail(s.failed)
	s.conn = c
	number, ok := c.open(s)
	s.id = number
	if !ok {
		s.leave()
		return ctx, status.Error(codes.Internal, "the stream of the call is unknown")
	}
	contain.OnDone(ctx, func() {
		c.forget(number)
		s.leave()
	}, nil)
	return context.WithValue(ctx, streamKey{}, s), nil
}

// Services returns a registrar that registers services at server and charges the messages of their calls.
func (g *Guard) Services(server grpc.ServiceRegistrar) grpc.ServiceRegistrar {
	return services{g, server}
}

type services struct {
	guard  *Guard
	server grpc.ServiceRegistrar
}

// RegisterService implements grpc.ServiceRegistrar.
func (r services) RegisterService(desc *grpc.ServiceDesc, implementation any) {
	g, own := r.guard, *desc
	own.Methods, own.Streams = nil, append([]grpc.StreamDesc(nil), desc.Streams...)
	for _, m := range desc.Methods {
		own.Streams = append(own.Streams, grpc.StreamDesc{StreamName: m.MethodName, Handler: g.unary(m)})
	}
	g.mu.Lock()
	for _, s := range own.Streams {
		g.methods["/"+own.ServiceName+"/"+s.StreamName] = true
	}
	g.mu.Unlock()
	r.server.RegisterService(&own, implementation)
}

// Methods returns the registered methods, sorted.
func (g *Guard) Methods() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.methods))
}

// unary returns the handler of a unary method as a stream handler, which runs before the message is received.
func (g *Guard) unary(m grpc.MethodDesc) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		return g.handle(ss, true, func(ss grpc.ServerStream) error {
			reply, err := m.Handler(srv, ss.Context(), ss.RecvMsg, g.opts.Unary)
			if err != nil {
				return err
			}
			return ss.SendMsg(reply)
		})
	}
}

// stream is the interceptor of streaming calls.
func (g *Guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return g.handle(ss, !info.IsClientStream, func(ss grpc.ServerStream) error { return next(srv, ss) })
}

// handle runs a handler. single reports that the client sends exactly one message.
func (g *Guard) handle(ss grpc.ServerStream, single bool, next func(grpc.ServerStream) error) error {
	ctx := ss.Context()
	s, _ := ctx.Value(streamKey{}).(*stream)
	if s == nil {
		return status.Error(codes.Internal, "the call was not admitted")
	}
	if err := s.enter(ctx, single); err != nil {
		return err
	}
	defer s.leave()
	defer s.answer.begin(true)
	packed := false
	if t, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string }); ok {
		packed = t.RecvCompress() != "" && t.RecvCompress() != "identity"
	}
	return next(&guardedStream{ServerStream: ss, stream: s, packed: packed, receiving: bulk.Charged{Charge: s.chargeDecoded}})
}
