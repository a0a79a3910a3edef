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
)

// work serves the inherited port until ctx or the supervisor ends, and then waits for requests in flight.
func work(ctx context.Context, socket string, drain time.Duration) error {
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
	model, err := endpoint.Follow(ctx, client, "base", newNetwork, endpoint.FollowOptions{})
	if err != nil {
		return err
	}
	defer model.Close()
	return serve(ctx, listener, model, drain)
}

// serve answers requests until ctx ends, and returns when requests in flight have ended.
func serve(ctx context.Context, listener net.Listener, model *endpoint.Follower[*network], drain time.Duration) error {
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
	case <-time.After(drain + time.Second): // the port may not close if its description became blocking
		return context.DeadlineExceeded
	}
}

// request is the body of POST /forward.
type request struct {
	// X is the input, padded with zeros to the width of the model.
	X []float32 `json:"x"`
	// PaceMS is the minimum time for the answer in milliseconds. It simulates the work of a real model.
	PaceMS int `json:"pace_ms"`
}

// answer is the response.
type answer struct {
	// Y is the output.
	Y []float32 `json:"y"`
	// Version is the version used for all layers.
	Version uint64 `json:"version"`
	// Worker is the process that answered.
	Worker int `json:"worker"`
}

// maxBody is the maximum size of a request's body in bytes.
const maxBody = 1 << 20

// forwardHandler computes with the newest version at the start of the request, which stays mapped until the response is
// complete.
func forwardHandler(model *endpoint.Follower[*network]) http.HandlerFunc {
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
			return // the client has left
		}
		y, err := pinned.Value().forward(in.X)
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
