//go:build linux

package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

// Health is the body of GET /healthz.
type Health struct {
	// PID is the worker's process.
	PID int `json:"pid"`
	// Version is the version in use.
	Version uint64 `json:"version"`
	// Refused is the reason why a newer version is not in use.
	Refused string `json:"refused,omitempty"`
	// Queued is the number of requests that wait.
	Queued int `json:"queued"`
}

// Names of response headers.
const (
	HeaderVersion = "Model-Version"
	HeaderWorker  = "Worker-Pid"
	HeaderBatch   = "Batch-Size" // requests of the run
)

// worker is the HTTP service of one process.
type worker struct {
	models   source
	batcher  *batcher
	limits   Limits
	draining atomic.Bool
	slots    chan struct{} // holds a token for each request whose body is in memory
	// start is the time from the start of the process until the model was ready, and load the part for the model: reading or
	// attaching it, and creating the session.
	start, load time.Duration
}

// serve answers requests until ctx ends, and returns when requests in flight have ended or after drain.
func (w *worker) serve(ctx context.Context, listener net.Listener, drain time.Duration) error {
	running, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.batcher.run(running)
	}()
	defer func() { stop(); <-ended }()
	server := &http.Server{
		Handler: w.routes(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: w.limits.Timeout, WriteTimeout: 3 * w.limits.Timeout,
		IdleTimeout: time.Minute,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	w.draining.Store(true)
	grace, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	return server.Shutdown(grace)
}

func (w *worker) routes() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("POST /infer", w.infer)
	routes.HandleFunc("GET /healthz", w.healthz)
	return routes
}

// healthz reports the worker's state, with status 503 while it drains.
func (w *worker) healthz(out http.ResponseWriter, _ *http.Request) {
	h := Health{PID: os.Getpid(), Queued: len(w.batcher.queue)}
	status := http.StatusOK
	err := w.models.use(func(m *Model) error { h.Version = m.Version; return nil })
	if err != nil || w.draining.Load() {
		status = http.StatusServiceUnavailable
	}
	if refused := w.models.status(); refused != nil {
		h.Refused = refused.Error()
	}
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(status)
	_ = json.NewEncoder(out).Encode(h) // best effort: the client may have left
}

// infer runs the model on the tensors of the body.
func (w *worker) infer(out http.ResponseWriter, r *http.Request) {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	default:
		fail(out, errBusy)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(out, r.Body, w.limits.Body))
	if err != nil {
		fail(out, err)
		return
	}
	inputs, err := DecodeTensors(body)
	if err != nil {
		fail(out, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), w.limits.Timeout)
	defer cancel()
	answer := w.batcher.infer(ctx, inputs)
	if answer.err == nil {
		body, answer.err = EncodeTensors(answer.outputs)
	}
	if answer.err != nil {
		fail(out, answer.err)
		return
	}
	h := out.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set(HeaderVersion, strconv.FormatUint(answer.version, 10))
	h.Set(HeaderWorker, strconv.Itoa(os.Getpid()))
	h.Set(HeaderBatch, strconv.Itoa(answer.batch))
	_, _ = out.Write(body) // best effort: the client may have left
}

// fail answers with the status of an error.
func fail(out http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, errInput):
		status = http.StatusBadRequest
	case errors.Is(err, errBusy):
		out.Header().Set("Retry-After", "1")
		status = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		status = http.StatusGatewayTimeout
	}
	http.Error(out, err.Error(), status)
}
