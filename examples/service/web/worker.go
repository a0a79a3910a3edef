//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// work serves the inherited port until ctx or the supervisor ends, and then lets the requests that run end.
func work(ctx context.Context, socket string, drain time.Duration) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the supervisor
		stop()
	}()
	inherited := os.NewFile(3, "listener")
	listener, err := net.FileListener(inherited) // a descriptor of its own, which serve closes
	inherited.Close()
	if err != nil {
		return err
	}
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Wait: true, Logger: slog.Default()})
	if err != nil {
		return err
	}
	defer client.Close()
	model, err := client.Follow(ctx, "base", endpoint.FollowOptions{Validate: validate})
	if err != nil {
		return err
	}
	defer model.Close()
	return serve(ctx, listener, model, drain)
}

// validate refuses a version that the requests could not use.
func validate(_ context.Context, _ uint64, sd *module.StateDict) error {
	_, err := newNetwork(sd)
	return err
}

// serve answers requests until ctx ends, and returns when those that run have ended.
func serve(ctx context.Context, listener net.Listener, model *endpoint.Follower, drain time.Duration) error {
	routes := http.NewServeMux()
	routes.Handle("POST /forward", forwardHandler(model))
	routes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		status := model.Status()
		fmt.Fprintf(w, "version %d, owner lost: %v, refused: %v\n", status.Version, status.OwnerLost, status.Refused)
	})
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- server.Shutdown(grace) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(drain + time.Second): // the port may not close where something has made it blocking
		return context.DeadlineExceeded
	}
}

// request is the body of POST /forward.
type request struct {
	// X is the input; it is filled up with zeros to the width of the model.
	X []float32 `json:"x"`
	// PaceMS is how many milliseconds the answer takes at least. It stands for the work that a real model is.
	PaceMS int `json:"pace_ms"`
}

// answer is what comes back.
type answer struct {
	// Y is the output.
	Y []float32 `json:"y"`
	// Version is the version that was used, from the first layer to the last.
	Version uint64 `json:"version"`
	// Worker is the process that answered.
	Worker int `json:"worker"`
}

// maxBody bounds the body of a request, in bytes.
const maxBody = 1 << 20

// forwardHandler sends the input through the version that is newest when the request begins. It stays mapped until the
// answer is made.
func forwardHandler(model *endpoint.Follower) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		pinned, err := model.Current()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer pinned.Close()
		select {
		case <-time.After(time.Duration(in.PaceMS) * time.Millisecond):
		case <-r.Context().Done():
			return // nobody waits for the answer
		}
		y, err := forward(pinned.StateDict(), in.X)
		if err != nil {
			status := http.StatusInternalServerError
			if errors.Is(err, driver.ErrInvalid) {
				status = http.StatusBadRequest
			}
			http.Error(w, err.Error(), status)
			return
		}
		body, err := json.Marshal(answer{Y: y, Version: pinned.Version(), Worker: os.Getpid()})
		if err != nil { // an infinite result
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}
}
