//go:build linux

// Command replica serves HTTP on a model that an owner holds in memory: Silero VAD, or square matrices. It uses the memory in
// place, and a newer version after its publication. With -private it loads its own copy of a file.
//
//	replica -listen SOCKET [-owner SOCKET] NAME
//	replica -listen SOCKET -private FILE
//
//	curl --unix-socket SOCKET --data-binary @clip.wav http://localhost/vad
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix(fmt.Sprintf("replica %d: ", os.Getpid()))
	listen := flag.String("listen", "", "Unix socket to serve")
	owner := flag.String("owner", "", "socket of the owner (default: the usual one)")
	private := flag.Bool("private", false, "load a private copy of a file")
	flag.Parse()
	if flag.NArg() != 1 || *listen == "" {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: replica -listen SOCKET [-owner SOCKET] NAME, or replica -listen SOCKET -private FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := runShared
	if *private {
		run = runPrivate
	}
	if err := run(ctx, *listen, *owner, flag.Arg(0)); err != nil {
		log.Fatal(err)
	}
}

// runShared serves the newest version of the owner's model.
func runShared(ctx context.Context, listen, owner, name string) (err error) {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{
		Socket: owner, Devices: []driver.Device{dev}, Wait: true, Logger: slog.Default(), Label: "replica",
	})
	if err != nil {
		return err
	}
	defer client.Close()
	prepare := func(_ context.Context, v endpoint.ModelVersion) (model, error) { return newModel(v.StateDict) }
	follower, err := endpoint.Follow(ctx, client, name, prepare, endpoint.FollowOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, follower.Close()) }()
	return serve(ctx, listen, func(use func(m model, version uint64)) (err error) {
		pinned, err := follower.Current()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, pinned.Close()) }()
		use(pinned.Value(), pinned.Version())
		return nil
	})
}

// runPrivate serves a copy of the model in private memory.
func runPrivate(ctx context.Context, listen, _, file string) (err error) {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	weights, err := module.Load(ctx, dev, file, module.LoadOptions{})
	if err != nil {
		return err
	}
	defer weights.Close()
	m, err := newModel(weights)
	if err != nil {
		return err
	}
	return serve(ctx, listen, func(use func(m model, version uint64)) error {
		use(m, 0)
		return nil
	})
}

// answer is the response to a request.
type answer struct {
	// Result is that of the model: for Silero VAD the probability of speech in each 32 ms.
	Result []float32 `json:"result"`
	// Version is that of the model; 0 for a private copy.
	Version uint64 `json:"version"`
	// PID is the process that answered.
	PID int `json:"pid"`
}

// serve answers requests until ctx ends, and completes requests in flight. current lends the model for one request.
func serve(ctx context.Context, listen string, current func(use func(m model, version uint64)) error) error {
	if err := os.Remove(listen); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed
		return err
	}
	listener, err := net.Listen("unix", listen)
	if err != nil {
		return err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if err := current(func(model, uint64) {}); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	infer := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var a answer
		var failed error
		err = current(func(m model, version uint64) {
			result, err := m.infer(body)
			a, failed = answer{result, version, os.Getpid()}, err
		})
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case failed != nil:
			http.Error(w, failed.Error(), http.StatusBadRequest)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(a)
		}
	}
	routes.HandleFunc("POST /vad", infer)
	routes.HandleFunc("POST /forward", infer)
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(grace)
}
