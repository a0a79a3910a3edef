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

// modelName is the published name of the model.
const modelName = "demo"

// directoryPrefix begins the name of the demo's temporary directory.
const directoryPrefix = "sharedtensor-demo-"

// socketPath returns the path of the owner's socket.
func socketPath(dir string) string { return filepath.Join(dir, "owner.sock") }

// errOrphaned means that the director has died.
var errOrphaned = errors.New("the director of the demo has ended")

// Work runs a process of the demo other than the director. It executes the requests on stdin and writes replies to
// stdout until it receives a quit request. role is its label at the owner; dir is the demo's directory. If stdin or ctx
// ends first, Work releases all resources and removes dir, even in the middle of a request.
func Work(ctx context.Context, stdin io.Reader, stdout io.Writer, role, dir string) (err error) {
	// If the director has died, writes must fail with an error. SIGPIPE would end the process without cleanup.
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

// read forwards requests until stdin ends, and then cancels the work.
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

// worker holds the resources of a demo process.
type worker struct {
	role, dir string
	dev       driver.Device
	out       *json.Encoder

	server *endpoint.Server // set in an owner
	served chan error
	own    *module.StateDict // a separate reference to the published model

	client *endpoint.Client
	handle *endpoint.Handle
	loop   *loop
}

// do executes one request.
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
	return reply{}, fmt.Errorf("%w: unknown request %q", driver.ErrInvalid, r.Op)
}

// stateDict returns the version that this process has attached or loaded, borrowed.
func (w *worker) stateDict() (*module.StateDict, error) {
	switch {
	case w.handle != nil:
		return w.handle.StateDict(), nil
	case w.own != nil:
		return w.own, nil
	}
	return nil, fmt.Errorf("%w: nothing is attached", driver.ErrInvalid)
}

// compute runs the network on the weights in place.
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

// close releases all resources, users before their dependencies.
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

// removeDirectory removes the directory after the director has died. Other processes may do the same concurrently.
func (w *worker) removeDirectory() error {
	if !strings.HasPrefix(filepath.Base(w.dir), directoryPrefix) {
		return fmt.Errorf("%w: %s is not a directory of the demo", driver.ErrInvalid, w.dir)
	}
	if err := os.RemoveAll(w.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
