package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demonet"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// modelName is the name under which the model is published.
const modelName = "demo"

// directoryPrefix begins the name of the demo's directory, below the system's one for temporary files.
const directoryPrefix = "sharedtensor-demo-"

// socketPath is the owner's socket in the demo's directory.
func socketPath(dir string) string { return filepath.Join(dir, "owner.sock") }

// errOrphaned is a process whose director is gone.
var errOrphaned = errors.New("the process that directs the demo is gone")

// Work is a process of the demo other than the one that directs: it does what requests on stdin say and answers on
// stdout, until it is told to quit. role is its label at the owner; dir is the demo's directory. When stdin ends before
// that, or ctx does, it closes everything that it has and removes dir, whatever it was doing.
func Work(ctx context.Context, stdin io.Reader, stdout io.Writer, role, dir string) (err error) {
	// A director that is gone must be an error of the write, not the signal that ends a process on the spot.
	signal.Ignore(syscall.SIGPIPE)
	dev, err := host.Open()
	if err != nil {
		return err
	}
	w := &worker{role: role, dir: dir, dev: dev, out: json.NewEncoder(stdout)}
	defer func() { err = errors.Join(err, w.close()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	requests := make(chan request)
	go read(ctx, cancel, stdin, requests)
	for {
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), w.removeDirectory())
		case r := <-requests:
			answer, err := w.do(ctx, r)
			if ctx.Err() != nil {
				continue
			}
			if err != nil {
				answer = errorReply(err)
			}
			if err := w.out.Encode(answer); err != nil || r.Op == opQuit {
				return err
			}
		}
	}
}

// read passes requests on until stdin ends, and then ends the work.
func read(ctx context.Context, end context.CancelCauseFunc, stdin io.Reader, requests chan<- request) {
	in := json.NewDecoder(stdin)
	for {
		var r request
		if err := in.Decode(&r); err != nil {
			end(errOrphaned)
			return
		}
		select {
		case requests <- r:
		case <-ctx.Done():
			return
		}
	}
}

// worker is what such a process has.
type worker struct {
	role, dir string
	dev       driver.Device
	out       *json.Encoder

	server *endpoint.Server // of an owner
	served chan error
	own    *module.StateDict // a reference of its own to what the owner published

	client *endpoint.Client
	handle *endpoint.Handle
	loop   *loop
}

// do carries out one request.
func (w *worker) do(ctx context.Context, r request) (reply, error) {
	switch r.Op {
	case opServe:
		return w.serve(ctx, r.Path)
	case opAttach:
		return w.attach(ctx)
	case opCompute:
		return w.compute(ctx)
	case opStart:
		return w.start(ctx)
	case opStop:
		return w.stop()
	case opHear:
		return w.hear(ctx, r.Version)
	case opPublish:
		return w.publish(ctx, r.Path)
	case opReconnect:
		return w.reconnect(ctx, r.Server)
	case opHandOver:
		return w.handOver(ctx)
	case opQuit:
		return reply{}, nil
	}
	return reply{}, fmt.Errorf("%w: there is no request %q", driver.ErrInvalid, r.Op)
}

// stateDict is the version that this process has, borrowed.
func (w *worker) stateDict() (*module.StateDict, error) {
	switch {
	case w.handle != nil:
		return w.handle.StateDict(), nil
	case w.own != nil:
		return w.own, nil
	}
	return nil, fmt.Errorf("%w: nothing is attached", driver.ErrInvalid)
}

// compute runs the network where the weights are.
func (w *worker) compute(ctx context.Context) (reply, error) {
	sd, err := w.stateDict()
	if err != nil {
		return reply{}, err
	}
	start := time.Now()
	r, err := demonet.Evaluate(ctx, sd)
	if err != nil {
		return reply{}, err
	}
	return reply{Took: time.Since(start), Result: newResult(r)}, nil
}

// close gives back everything, in the order that nothing is used after it is gone.
func (w *worker) close() error {
	var errs []error
	if w.loop != nil {
		w.loop.end()
	}
	if w.handle != nil {
		errs = append(errs, w.handle.Close())
	}
	if w.client != nil {
		errs = append(errs, w.client.Close())
	}
	if w.own != nil {
		errs = append(errs, w.own.Close())
	}
	if w.server != nil {
		errs = append(errs, w.server.Close())
		if err := <-w.served; !errors.Is(err, endpoint.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, w.dev.Close())...)
}

// removeDirectory removes what the director can remove no more. Other processes may be doing the same.
func (w *worker) removeDirectory() error {
	if !strings.HasPrefix(filepath.Base(w.dir), directoryPrefix) {
		return fmt.Errorf("%w: %s is not a directory of the demo", driver.ErrInvalid, w.dir)
	}
	if err := os.RemoveAll(w.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
