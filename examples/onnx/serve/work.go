//go:build linux

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"example.com/onnx/ort"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Config describes a service.
type Config struct {
	// Library is the path of libonnxruntime.so.
	Library string
	// Socket and Name are the owner's socket and the name of the published model.
	Socket, Name string
	// Private is a model file that each worker loads alone. It replaces Socket and Name.
	Private string
	// Options configures the sessions. Weights are added.
	Options ort.Options
	// Batch combines requests.
	Batch Batch
	// Limits limits requests.
	Limits Limits
	// Drain is the time that requests in flight have after SIGTERM.
	Drain time.Duration
}

// startedVariable is the environment variable with the time at which the supervisor started a worker.
const startedVariable = "ONNX_SERVE_STARTED"

// Work serves the port that the supervisor passed as descriptor 3 until ctx or the supervisor ends, and then waits for
// requests in flight.
func Work(ctx context.Context, c Config) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the supervisor
		stop()
	}()
	inherited := os.NewFile(3, "listener")
	listener, err := net.FileListener(inherited) // a separate descriptor, which serve closes
	inherited.Close()
	if err != nil {
		return err
	}
	defer listener.Close()
	w, err := newWorker(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.models.Close()) }()
	slog.Info("ready", "pid", os.Getpid(), "start", w.start, "load", w.load)
	return w.serve(ctx, listener, c.Drain)
}

// newWorker loads the library and the model.
func newWorker(ctx context.Context, c Config) (*worker, error) {
	library, err := ort.Open(c.Library)
	if err != nil {
		return nil, err
	}
	w := &worker{limits: c.Limits.withDefaults()}
	w.slots = make(chan struct{}, w.limits.Queue)
	begin := time.Now()
	if w.models, err = openSource(ctx, library, c); err != nil {
		return nil, err
	}
	w.load = time.Since(begin)
	if started, err := strconv.ParseInt(os.Getenv(startedVariable), 10, 64); err == nil {
		w.start = time.Since(time.Unix(0, started))
	}
	w.batcher = newBatcher(w.models, c.Batch, w.limits)
	return w, nil
}

// openSource attaches the published model, or loads the private one.
func openSource(ctx context.Context, library *ort.Library, c Config) (_ source, err error) {
	if c.Private != "" {
		session, err := library.NewSessionFromFile(c.Private, c.Options)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Private, err)
		}
		m, err := newModel(session, 0, c.Batch)
		if err != nil {
			return nil, err
		}
		return &private{m}, nil
	}
	f := &followed{}
	if f.device, err = host.Open(); err != nil {
		return nil, err
	}
	f.client, err = endpoint.Dial(ctx, endpoint.ClientOptions{
		Socket: c.Socket, Devices: []driver.Device{f.device}, Wait: true, Label: "onnx-serve", Logger: slog.Default(),
	})
	if err != nil {
		return nil, errors.Join(err, f.device.Close())
	}
	prepare := func(_ context.Context, v endpoint.ModelVersion) (*Model, error) {
		m, err := attach(library, v, c)
		if err == nil {
			slog.Info("attached", "pid", os.Getpid(), "version", v.Version)
		}
		return m, err
	}
	f.models, err = endpoint.Follow(ctx, f.client, c.Name, prepare, endpoint.FollowOptions{})
	if err != nil {
		return nil, errors.Join(err, f.client.Close(), f.device.Close())
	}
	return f, nil
}
