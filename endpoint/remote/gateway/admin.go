package gateway

import (
	"net"
	"net/http"
	"net/http/pprof"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// maxAdminConnections limits the connections of the listener of operators.
const maxAdminConnections = 256

// handleOperators registers health and metrics.
func (g *Gateway) handleOperators(mux *routes) {
	g.health.handle(mux)
	mux.Handle("GET /metrics", g.metricsHandler())
}

// handleProfiles registers pprof. It exposes the memory of this process, so it needs the right to control. Without identities, it
// needs a process of the gateway's user on this host, also with --insecure.
func (g *Gateway) handleProfiles(mux Mux) {
	for pattern, profile := range profiles {
		mux.Handle(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := rights.Sender(r.Context()).AllowControl()
			if g.ids.open() {
				err = admission.CheckUser(admission.PeerFrom(r.Context()))
			}
			if err != nil {
				fail(w, r, admission.KindOf(err), err.Error())
				return
			}
			profile(w, r)
		}))
	}
}

// profiles are the handlers of pprof by pattern.
var profiles = map[string]http.HandlerFunc{
	"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
	"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
}

// connStates counts the connections of an HTTP server by state.
type connStates struct {
	mu    sync.Mutex
	of    map[net.Conn]http.ConnState
	count map[http.ConnState]int
}

func newConnStates() *connStates {
	return &connStates{of: make(map[net.Conn]http.ConnState), count: make(map[http.ConnState]int)}
}

// set implements http.Server.ConnState.
func (s *connStates) set(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, known := s.of[conn]; known {
		s.count[old]--
	}
	if state == http.StateClosed || state == http.StateHijacked {
		delete(s.of, conn)
		return
	}
	s.of[conn] = state
	s.count[state]++
}

// number returns the number of connections in a state.
func (s *connStates) number(state http.ConnState) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[state]
}
