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

// traceValues returns the settings of a server that records no traces.
func traceValues() map[string][]string {
	return map[string][]string{
		"trace_level": {"OFF"}, "trace_rate": {"1000"}, "trace_count": {"-1"}, "log_frequency": {"0"}, "trace_file": {""}, "trace_mode": {"triton"},
	}
}

// logValues returns the gateway's log settings: texts, truth values and a number.
func (s *service) logValues() map[string]any {
	on := func(level slog.Level) bool { return s.env.Logger.Enabled(context.Background(), level) }
	verbose := uint32(0)
	if on(slog.LevelDebug) {
		verbose = 1
	}
	return map[string]any{
		"log_file": "", "log_info": on(slog.LevelInfo), "log_warning": on(slog.LevelWarn), "log_error": on(slog.LevelError),
		"log_verbose_level": verbose, "log_format": "default",
	}
}

// What to do instead of changing settings.
const (
	traceRemedy = "the gateway passes traceparent on and records no traces"
	logRemedy   = "start the gateway with --log-level"
)

func errSetting(name, remedy string) error {
	return fmt.Errorf("%w: the setting '%s' cannot be changed here: %s", ErrNotServed, clip(name), remedy)
}

// noChanges returns an error if a request would change settings.
func (s restService) noChanges(w http.ResponseWriter, r *http.Request, remedy string) error {
	var in map[string]any
	if r.Method == http.MethodPost {
		if err := s.control(w, r, &in); err != nil {
			return err
		}
	}
	for name := range in {
		return errSetting(name, remedy)
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
	if err := s.noChanges(w, r, traceRemedy); err != nil {
		return err
	}
	out := map[string]any{}
	for name, values := range traceValues() {
		if out[name] = values[0]; name == "trace_level" {
			out[name] = values
		}
	}
	answerJSON(w, http.StatusOK, out)
	return nil
}

// logSettings sends the gateway's log settings.
func (s restService) logSettings(w http.ResponseWriter, r *http.Request) error {
	if err := s.noChanges(w, r, logRemedy); err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, s.logValues())
	return nil
}
