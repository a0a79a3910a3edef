package gateway

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// Interval of health checks, and the time that a component has to answer.
const (
	healthEvery    = 2 * time.Second
	healthPatience = 3 * time.Second
)

// healthBoard reports whether requests would succeed: the result of the latest check. A probe causes no check, because
// it needs no identity.
type healthBoard struct {
	gateway *Gateway
	grpc    *health.Server
	checked chan struct{} // closed after the first check

	mu       sync.Mutex
	checkers []namedChecker
	reasons  map[string]string // of the latest check; nil before the first
}

type namedChecker struct {
	name string
	Checker
}

// readiness is the answer of /readyz.
type readiness struct {
	// Status is "ready" or "not ready".
	Status string `json:"status"`
	// Reasons maps each part that is not ready to the reason.
	Reasons map[string]string `json:"reasons,omitempty"`
	// Timestamp is the time of the check, in seconds since 1970.
	Timestamp float64 `json:"timestamp"`
}

func newHealthBoard(g *Gateway) *healthBoard {
	b := &healthBoard{gateway: g, grpc: health.NewServer(), checked: make(chan struct{})}
	b.grpc.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	return b
}

func (b *healthBoard) add(name string, c Checker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checkers = append(b.checkers, namedChecker{name, c})
	for _, service := range c.HealthServices() {
		b.grpc.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
}

func (b *healthBoard) registerGRPC(s grpc.ServiceRegistrar) {
	grpc_health_v1.RegisterHealthServer(s, b.grpc)
}

func (b *healthBoard) handle(mux Mux) {
	mux.Handle("GET /healthz", http.HandlerFunc(b.live))
	mux.Handle("GET /health", http.HandlerFunc(b.live))
	mux.Handle("GET /readyz", http.HandlerFunc(b.readyz))
}

// live reports that the process responds.
func (b *healthBoard) live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"status": "healthy", "timestamp": unixSeconds(time.Now())})
}

// readyz reports whether requests would have succeeded at the latest check. Reasons name paths and addresses, so unknown
// clients receive only the parts.
func (b *healthBoard) readyz(w http.ResponseWriter, r *http.Request) {
	select {
	case <-b.checked: // soon after the start
	case <-r.Context().Done():
	case <-time.After(healthPatience):
	}
	b.mu.Lock()
	reasons := maps.Clone(b.reasons)
	b.mu.Unlock()
	if reasons == nil {
		reasons = map[string]string{"gateway": "no check has ended yet"}
	}
	if b.gateway.draining.Load() {
		reasons["gateway"] = ErrDraining.Error()
	}
	if !rights.IdentityFrom(r.Context()).Known() {
		for part := range reasons {
			reasons[part] = "not ready"
		}
	}
	answer := readiness{Status: "ready", Reasons: reasons, Timestamp: unixSeconds(time.Now())}
	code := http.StatusOK
	if len(reasons) > 0 {
		answer.Status, code = "not ready", http.StatusServiceUnavailable
	}
	writeJSON(w, code, answer)
}

// look checks all parts and returns the reasons of those that are not ready.
func (b *healthBoard) look(ctx context.Context) map[string]string {
	reasons := map[string]string{}
	if b.gateway.draining.Load() {
		reasons["gateway"] = ErrDraining.Error()
	}
	if err := b.gateway.owner.ready(); err != nil {
		reasons["owner"] = err.Error()
	}
	if err := b.gateway.checkNATS(); err != nil {
		reasons["nats"] = err.Error()
	}
	b.mu.Lock()
	checkers := b.checkers
	b.mu.Unlock()
	for _, c := range checkers {
		if err := c.Check(ctx); err != nil {
			reasons[c.name] = err.Error()
		}
	}
	return reasons
}

// run updates the gRPC health status until ctx ends.
func (b *healthBoard) run(ctx context.Context) {
	for ctx.Err() == nil {
		changed := b.gateway.owner.Changed()
		b.update(ctx)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(healthEvery):
		}
	}
}

func (b *healthBoard) update(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	reasons := b.look(asking)
	if ctx.Err() != nil {
		return // shutdown sets the final status
	}
	b.grpc.SetServingStatus("", serving(len(reasons) == 0))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reasons == nil {
		close(b.checked)
	}
	b.reasons = reasons
	for _, c := range b.checkers {
		_, bad := reasons[c.name]
		for _, service := range c.HealthServices() {
			b.grpc.SetServingStatus(service, serving(!bad))
		}
	}
}

// shutdown permanently sets all services to not serving.
func (b *healthBoard) shutdown() { b.grpc.Shutdown() }

func serving(yes bool) grpc_health_v1.HealthCheckResponse_ServingStatus {
	if yes {
		return grpc_health_v1.HealthCheckResponse_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_NOT_SERVING
}

// unixSeconds returns a time in seconds since 1970, the format of shared-tensor 0.1.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// writeJSON answers with a value. Write errors are ignored because the peer has left.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
