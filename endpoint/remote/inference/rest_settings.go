package inference

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// registerSettings adds the routes of the trace and logging extensions. Settings are read-only.
func (s restService) registerSettings(mux gateway.Mux) {
	for _, at := range []string{"/v2", "/v2/models/{model}"} {
		mux.Handle("GET "+at+"/trace/setting", restHandler(s.traceSettings))
		mux.Handle("POST "+at+"/trace/setting", restHandler(s.traceSettings))
	}
	mux.Handle("GET /v2/logging", restHandler(s.logSettings))
	mux.Handle("POST /v2/logging", restHandler(s.logSettings))
	mux.Handle("/v2/", restHandler(func(_ http.ResponseWriter, r *http.Request) error {
		return fmt.Errorf("%w: the protocol has no %s %s", ErrNotFound, r.Method, clip(r.URL.Path))
	}))
}

// noChanges returns an error if a request would change settings.
func noChanges(w http.ResponseWriter, r *http.Request, remedy string) error {
	var in map[string]any
	if r.Method == http.MethodPost {
		if err := control(w, r, &in); err != nil {
			return err
		}
	}
	for name := range in {
		return fmt.Errorf("%w: the setting '%s' cannot be changed here: %s", ErrNotServed, clip(name), remedy)
	}
	return nil
}

// traceSettings sends the settings of a server that records no traces.
func (s restService) traceSettings(w http.ResponseWriter, r *http.Request) error {
	if name := r.PathValue("model"); name != "" {
		if _, err := s.models.lookup(r.Context(), name); err != nil {
			return err
		}
	}
	if err := noChanges(w, r, "the gateway passes traceparent on and records no traces"); err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, map[string]any{
		"trace_level": []string{"OFF"}, "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": "", "trace_mode": "triton",
	})
	return nil
}

// logSettings sends the gateway's log settings.
func (s restService) logSettings(w http.ResponseWriter, r *http.Request) error {
	if err := noChanges(w, r, "start the gateway with --log-level"); err != nil {
		return err
	}
	on := func(level slog.Level) bool { return s.env.Logger.Enabled(context.Background(), level) }
	verbose := 0
	if on(slog.LevelDebug) {
		verbose = 1
	}
	answerJSON(w, http.StatusOK, map[string]any{
		"log_file": "", "log_info": on(slog.LevelInfo), "log_warning": on(slog.LevelWarn), "log_error": on(slog.LevelError),
		"log_verbose_level": verbose, "log_format": "default",
	})
	return nil
}
