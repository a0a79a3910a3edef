package gateway

import (
	"context"
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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway/internal/statuswriter"
)

// What peers may take over a request before its body, and how long an idle connection is kept.
const (
	headerPatience = 10 * time.Second
	idlePatience   = 2 * time.Minute
	maxHeaderBytes = 64 << 10
)

// newHTTPServer returns the server of the HTTP listener.
func (g *Gateway) newHTTPServer() *http.Server {
	server := &http.Server{
		Handler: g.front(g.mux), ReadHeaderTimeout: headerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:    slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return g.requests },
	}
	server.TLSConfig = g.ids.tlsConfig()
	return server
}

// openPaths are answered without identity: probes have none, and what they are told is no secret.
var openPaths = []string{"/health", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"}

// front is what every HTTP request goes through: a trace, identity, counting, and an answer where a handler panics.
func (g *Gateway) front(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		ctx := withTrace(r.Context(), r.Header.Get(intercept.TraceParent), strings.Join(r.Header.Values(intercept.TraceState), ","))
		ctx = withCorrelation(ctx, r.Header.Get(correlationHeader))
		sw := statuswriter.New(w)
		if id := CorrelationFrom(ctx); id != "" {
			sw.Header().Set(correlationHeader, id)
		}
		r = r.WithContext(ctx)
		defer func() { g.observe(sw, r, begin, recover()) }()
		if err := g.admit(r, crossOrigin); err != nil {
			refuse(sw, err)
			return
		}
		id, err := g.ids.identify(r.Header.Get("Authorization"), r.TLS)
		if err != nil && !slices.Contains(openPaths, r.URL.Path) {
			sw.Header().Set("WWW-Authenticate", `Bearer, Basic realm="sharedtensor: any name, the token as password"`)
			refuse(sw, err)
			return
		}
		*r = *r.WithContext(context.WithValue(ctx, identityKey{}, id))
		next.ServeHTTP(sw, r)
	})
}

// errHost is a request that a browser was tricked into sending.
var errHost = errors.New("refused: sent on behalf of another site")

// admit refuses what a web page of somebody else's makes a browser on this host send: another site's request, or one to
// a name that was made to mean this host.
func (g *Gateway) admit(r *http.Request, crossOrigin *http.CrossOriginProtection) error {
	if err := crossOrigin.Check(r); err != nil {
		return fmt.Errorf("%w: %w", errHost, err)
	}
	if !g.ids.open() || g.config.Insecure || r.Host == "" || strings.HasPrefix(g.config.HTTP, "unix:") {
		return nil
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	if loopbackName(host) || slices.Contains(g.config.AllowHosts, host) {
		return nil
	}
	return fmt.Errorf("%w: the host %q is not this gateway: see --allow-hosts", errHost, host)
}

// refuse answers a request that does not get to its handler.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusForbidden
	if errors.Is(err, ErrUnauthenticated) {
		status = http.StatusUnauthorized
	}
	http.Error(w, err.Error(), status)
}

// observe counts a request and answers for a handler that panicked. Panics by which a handler cuts its connection are
// passed on.
func (g *Gateway) observe(w *statuswriter.Writer, r *http.Request, begin time.Time, panicked any) {
	route := r.Pattern
	if route == "" {
		route = "none"
	}
	trace := traceID(r.Context())
	if panicked != nil && panicked != http.ErrAbortHandler { //nolint:errorlint // it is thrown, not wrapped
		g.log.Error("a handler panicked", "route", route, "trace_id", trace, "correlation_id", CorrelationFrom(r.Context()), "panic", panicked, "stack", string(debug.Stack()))
		if w.Status() == 0 {
			http.Error(w, "internal error; the gateway's log has more under trace_id "+trace, http.StatusInternalServerError)
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
	if route != eventsRoute { // how long somebody looked is no latency
		g.calls.Observe("http", route, code, d)
	}
	if g.log.Enabled(r.Context(), slog.LevelDebug) {
		g.log.Debug("http", "method", r.Method, "path", r.URL.Path, "status", w.Status(), "bytes", w.Bytes(), "seconds", d.Seconds(),
			"remote", r.RemoteAddr, "identity", IdentityFrom(r.Context()).Name, "trace_id", trace, "correlation_id", CorrelationFrom(r.Context()))
	}
	if panicked != nil {
		panic(http.ErrAbortHandler)
	}
}

// slogPrinter lets the Prometheus library log.
type slogPrinter struct{ log *slog.Logger }

// Println implements promhttp.Logger.
func (p slogPrinter) Println(v ...any) { p.log.Warn("metrics: " + fmt.Sprint(v...)) }
