package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
)

// newDebugServer returns the server of pprof, which has a separate loopback listener. pprof exposes the memory of this
// process, so requests always need a token or must come from the user of this process. The Host header must be the
// listener's address, which keeps web pages out.
func (g *Gateway) newDebugServer(l *namedListener) *http.Server {
	mux := http.NewServeMux()
	for pattern, profile := range profiles {
		mux.HandleFunc(pattern, profile)
	}
	address := l.Addr().String()
	server := &http.Server{
		ConnContext: withRemote,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != address && l.Addr().Network() != "unix" {
				http.Error(w, "address this listener as "+address, http.StatusForbidden)
				return
			}
			if err := g.admitDebug(r); err != nil {
				http.Error(w, err.Error(), http.StatusUnauthorized)
				return
			}
			mux.ServeHTTP(w, r)
		}),
	}
	edge.Protect(server, g.config.Stall)
	return server
}

// admitDebug returns nil if the sender of a request may read the memory of this process.
func (g *Gateway) admitDebug(r *http.Request) error {
	err := admission.CheckUser(admission.PeerFrom(r.Context()))
	if err == nil || g.ids.open() {
		return err
	}
	id, err := g.ids.identify(r.Header.Get("Authorization"), r.TLS, nil)
	if err == nil {
		err = id.AllowControl()
	}
	return err
}

// NewLogger returns a logger with the configured LogLevel and LogFormat.
func (c *Config) NewLogger(w io.Writer) (*slog.Logger, error) {
	return newLogger(w, c.LogLevel, c.LogFormat)
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var at slog.Level
	if err := at.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is not one of debug, info, warn, error", level)
	}
	opts := &slog.HandlerOptions{Level: at}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format: %q is neither text nor json", format)
}
