package gateway

import (
	"net/http"
	"net/http/pprof"
)

// newDebugServer serves pprof on a listener of its own, which other hosts cannot reach. Browsers are kept from it by
// the name that they have to use.
func newDebugServer(l *boundedListener) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	address := l.Addr().String()
	return &http.Server{
		ReadHeaderTimeout: headerPatience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != address && l.Addr().Network() != "unix" {
				http.Error(w, "address this listener as "+address, http.StatusForbidden)
				return
			}
			mux.ServeHTTP(w, r)
		}),
	}
}
