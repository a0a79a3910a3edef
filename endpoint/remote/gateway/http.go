package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway/internal/statuswriter"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// maxHeaderBytes limits the headers of a request.
const maxHeaderBytes = 64 << 10

// newHTTPServer returns the server of an HTTP listener.
func (g *Gateway) newHTTPServer(mux *http.ServeMux, l *namedListener) *http.Server {
	states := newConnStates()
	g.states[l.name] = states
	server := &http.Server{
		ConnState: states.set,
		Handler:   g.front(mux, l.Addr().Network() == "unix"), MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:    slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return g.requests },
		ConnContext: withRemote,
	}
	server.TLSConfig = g.ids.tlsConfig("h2", "http/1.1")
	edge.Protect(server, g.config.Stall)
	return server
}

// withRemote adds the connection's remote address to the context of its requests, because http.Request holds it only as
// text.
func withRemote(ctx context.Context, conn net.Conn) context.Context {
	return admission.WithConn(ctx, conn)
}

// openPaths need no identity: probes have none, and the answers are not confidential.
var openPaths = []string{"/health", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"}

// front wraps all HTTP handlers. It adds the trace, checks the identity, counts requests and recovers from panics.
func (g *Gateway) front(next http.Handler, unix bool) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		ctx := withTrace(r.Context(), r.Header.Get(intercept.TraceParent), strings.Join(r.Header.Values(intercept.TraceState), ","))
		ctx = withCorrelation(ctx, r.Header.Get(correlationHeader))
		sw := statuswriter.New(w, r)
		defer sw.End()
		if id := CorrelationFrom(ctx); id != "" {
			sw.Header().Set(correlationHeader, id)
		}
		ctx, used := withTarget(ctx)
		client := g.forwardedFrom(r)
		if client != nil {
			ctx = admission.WithPeer(ctx, client)
		}
		r = r.WithContext(ctx)
		if client != nil {
			r.RemoteAddr = client.String()
		}
		g.runningHTTP.Inc()
		defer g.runningHTTP.Dec()
		defer func() { g.observe(sw, r, used, begin, recover()) }()
		if err := g.admit(r, crossOrigin, unix); err != nil {
			refuse(sw, r, err)
			return
		}
		id, err := g.ids.identify(r.Header.Get("Authorization"), r.TLS, admission.PeerFrom(r.Context()))
		if err != nil && !slices.Contains(openPaths, r.URL.Path) {
			sw.Header().Set("WWW-Authenticate", `Bearer, Basic realm="sharedtensor: any name, the token as password"`)
			refuse(sw, r, err)
			return
		}
		authorization, state := r.Header.Get("Authorization"), r.TLS
		ctx, call, err := g.admitted.Enter(ctx, id, g.validity(id, authorization, state))
		if err != nil {
			refuse(sw, r, err)
			return
		}
		defer call.Leave()
		// The end of the call's context does not interrupt a handler that reads or writes the connection.
		call.OnFail(func(error) { sw.Cut() })
		*r = *r.WithContext(ctx)
		next.ServeHTTP(sw, r)
	})
}

// errCrossSite reports a request that another site made a browser send.
var errCrossSite = admission.NewError(admission.Refused, "refused: sent on behalf of another site")

// admit identifies the sender and refuses requests forged by web pages: cross-origin requests, and requests to a host
// name that was rebound to this host.
func (g *Gateway) admit(r *http.Request, crossOrigin *http.CrossOriginProtection, unix bool) error {
	if err := crossOrigin.Check(r); err != nil {
		return fmt.Errorf("%w: %w", errCrossSite, err)
	}
	if !g.ids.open() || g.config.Insecure || r.Host == "" || unix {
		return nil
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	if local.Loopback(host) || slices.Contains(g.config.AllowHosts, host) {
		return nil
	}
	return fmt.Errorf("%w: the host %q is not this gateway: see --allow-hosts", errCrossSite, host)
}

// needs refuses requests whose sender lacks the right that the route requires, before their bodies are read.
func (g *Gateway) needs(pattern string, next http.Handler) http.Handler {
	need, known := rights.Routes[pattern]
	if !known { // a route of the embedding program
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue(need.Param)
		if need.Versioned {
			name, _ = rights.SplitVersion(name)
		}
		if err := g.check(rights.Sender(r.Context()), need, name); err != nil {
			refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check returns nil if a sender may do an operation with the model or function of the name.
func (g *Gateway) check(id Identity, need rights.Need, name string) error {
	return checkNeed(id, need, name, g.config.ReadOnly, g.refusals)
}

// rpcRoute is the route of JSON-RPC, whose clients receive each failure as an error object.
const rpcRoute = "/jsonrpc"

// refuse answers a request that was not admitted.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, rights.ErrUnauthenticated) {
		w.Header().Set("Connection", "close") // a revoked client keeps no connection
	}
	fail(w, r, admission.KindOf(err), err.Error())
}

// fail answers a request with an error in the form of its protocol.
func fail(w http.ResponseWriter, r *http.Request, kind admission.Kind, text string) {
	var answer map[string]any
	switch path := r.URL.Path; {
	case path == rpcRoute:
		answer = map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": kind.RPC, "message": text}}
	case strings.HasPrefix(path, "/v2/"):
		answer = map[string]any{"error": text}
	case strings.HasPrefix(path, "/v1/"):
		answer = map[string]any{"error": map[string]any{"code": kind.RPC, "message": text, "data": map[string]any{"trace_id": traceID(r.Context())}}}
	default:
		http.Error(w, text, kind.HTTP)
		return
	}
	body, _ := json.Marshal(answer) // cannot fail: strings and numbers only
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(kind.HTTP)
	_, _ = w.Write(body)
}

// observe counts a request and answers for a handler that panicked. It passes on panics with http.ErrAbortHandler.
func (g *Gateway) observe(w *statuswriter.Writer, r *http.Request, used *target, begin time.Time, panicked any) {
	route := r.Pattern
	if route == "" {
		route = "none"
	}
	trace := traceID(r.Context())
	if panicked != nil && panicked != http.ErrAbortHandler { //nolint:errorlint // it is thrown, not wrapped
		g.log.Error("a handler panicked", "route", route, "trace_id", trace, "correlation_id", CorrelationFrom(r.Context()), "panic", panicked, "stack", string(debug.Stack()))
		if w.Status() == 0 {
			fail(w, r, admission.Internal, "internal error; see the gateway's log for trace_id "+trace)
		}
	}
	code := "ok"
	if status := w.Status(); status >= 400 {
		code = http.StatusText(status)
	}
	if panicked != nil {
		code = "aborted"
	}
	d := time.Since(begin)
	if route != eventsRoute { // a viewing time is not a latency
		g.calls.Observe("http", route, code, d)
		g.clients.observe(IdentityFrom(r.Context()), used, code != "ok", d)
	}
	level := slog.LevelInfo
	if slices.Contains(openPaths, r.URL.Path) { // probes
		level = slog.LevelDebug
	}
	if g.access.Enabled(r.Context(), level) {
		g.access.Log(r.Context(), level, "access", "protocol", "http", "method", r.Method, "path", r.URL.Path, "route", route, "status", w.Status(), "bytes", w.Bytes(),
			"seconds", d.Seconds(), "remote", r.RemoteAddr, "identity", IdentityFrom(r.Context()).Name, "trace_id", trace, "correlation_id", CorrelationFrom(r.Context()))
	}
	if panicked != nil {
		panic(http.ErrAbortHandler)
	}
}

// slogPrinter is the logger of the Prometheus library.
type slogPrinter struct{ log *slog.Logger }

// Println implements promhttp.Logger.
func (p slogPrinter) Println(v ...any) { p.log.Warn("metrics: " + fmt.Sprint(v...)) }
