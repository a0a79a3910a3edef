package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// How often health is looked at, and how long a component may take to answer.
const (
	healthEvery    = 2 * time.Second
	healthPatience = 3 * time.Second
)

// errDraining is a gateway that is about to stop.
var errDraining = errors.New("the gateway is stopping")

// healthBoard reports whether requests would succeed: over HTTP by asking then and there, over gRPC by what was found
// last.
type healthBoard struct {
	gateway *Gateway
	grpc    *health.Server

	mu       sync.Mutex
	checkers []namedChecker
}

type namedChecker struct {
	name string
	Checker
}

// readiness is the answer of /readyz.
type readiness struct {
	// Status is "ready" or "not ready".
	Status string `json:"status"`
	// Reasons say what is missing, by the part that it is missing in.
	Reasons map[string]string `json:"reasons,omitempty"`
	// Timestamp is when it was looked at, in seconds since 1970.
	Timestamp float64 `json:"timestamp"`
}

func newHealthBoard(g *Gateway) *healthBoard {
	b := &healthBoard{gateway: g, grpc: health.NewServer()}
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

func (b *healthBoard) registerGRPC(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, b.grpc) }

func (b *healthBoard) handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", b.live)
	mux.HandleFunc("GET /health", b.live)
	mux.HandleFunc("GET /readyz", b.readyz)
}

// live says that the process runs and answers.
func (b *healthBoard) live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"status": "healthy", "timestamp": unixSeconds(time.Now())})
}

// readyz says whether requests would succeed now.
func (b *healthBoard) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), healthPatience)
	defer cancel()
	reasons := b.look(ctx)
	answer := readiness{Status: "ready", Reasons: reasons, Timestamp: unixSeconds(time.Now())}
	code := http.StatusOK
	if len(reasons) > 0 {
		answer.Status, code = "not ready", http.StatusServiceUnavailable
	}
	writeJSON(w, code, answer)
}

// look asks everybody and returns what is missing.
func (b *healthBoard) look(ctx context.Context) map[string]string {
	reasons := map[string]string{}
	if b.gateway.draining.Load() {
		reasons["gateway"] = errDraining.Error()
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

// run keeps what gRPC says up to date until ctx ends.
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
		return // shutdown says it from here on
	}
	b.grpc.SetServingStatus("", serving(len(reasons) == 0))
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.checkers {
		_, bad := reasons[c.name]
		for _, service := range c.HealthServices() {
			b.grpc.SetServingStatus(service, serving(!bad))
		}
	}
}

// shutdown says of everything, for good, that it does not serve.
func (b *healthBoard) shutdown() { b.grpc.Shutdown() }

func serving(yes bool) grpc_health_v1.HealthCheckResponse_ServingStatus {
	if yes {
		return grpc_health_v1.HealthCheckResponse_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_NOT_SERVING
}

// unixSeconds is a time as JSON-RPC's clients of shared-tensor know it.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// writeJSON answers with a value. What cannot be written is the peer's loss: it has gone.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
