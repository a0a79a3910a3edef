package demo

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/child"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Operations that the director requests.
const (
	opServe     = "serve"     // own the socket; with a seed, publish that version first
	opPublish   = "publish"   // publish another version to the owner
	opAttach    = "attach"    // acquire the newest version and release the previous one
	opCompute   = "compute"   // compute on the attached version
	opReconnect = "reconnect" // wait for the connection to another owner
	opHandOver  = "hand over" // publish the attached version
)

// request is one line from the director.
type request struct {
	Op     string
	Path   string        // the model to load, or empty to generate it
	Size   int64         // of a generated model
	Seed   uint64        // 1 for the first version, 2 for the second, 0 for none
	During time.Duration // minimum duration of opCompute
	Server string        // the owner's id
	Keep   bool          // for opServe: a keeper holds the model when the owner has ended
}

// reply is the answer, one line to the director.
type reply struct {
	Bytes   int64         `json:",omitempty"` // of the model's memory
	Version uint64        `json:",omitempty"`
	Server  string        `json:",omitempty"` // the owner's id
	Took    time.Duration `json:",omitempty"`
	Sum     string        `json:",omitempty"` // the result of a computation
	Runs    int           `json:",omitempty"` // number of computations, all with the same result
}

// modelName is the published name of the model.
const modelName = "demo"

// socketPath returns the path of the owner's socket.
func socketPath(dir string) string { return filepath.Join(dir, "owner.sock") }

// Work runs a process of the demo other than the director. It executes the requests on stdin and writes replies to
// stdout. role is its label at the owner; dir is the demo's directory. If stdin or ctx ends, also in the middle of a
// request, Work releases all resources. An owner then removes dir, because the director may have died.
func Work(ctx context.Context, stdin io.Reader, stdout io.Writer, role, dir string) (err error) {
	if !strings.HasPrefix(filepath.Base(dir), directoryPrefix) {
		return fmt.Errorf("%w: %s is not a directory of the demo", driver.ErrInvalid, dir)
	}
	if role == keeperRole {
		ctx, cancel := context.WithTimeout(ctx, keeperTime)
		defer cancel()
		return keeper.Serve(ctx, keeper.Config{Socket: keeperPath(dir)})
	}
	dev, err := host.Open()
	if err != nil {
		return err
	}
	w := &worker{role: role, dir: dir, dev: dev}
	defer func() { err = errors.Join(err, w.close()) }()
	return child.Serve(ctx, stdin, stdout, w.do)
}

// keeperRole is the role of the process that holds the model while no owner runs. It ends after keeperTime, if the
// processes that would end it are killed.
const (
	keeperRole = "keeper"
	keeperTime = 10 * time.Minute
)

// keeperPath returns the path of the keeper's socket.
func keeperPath(dir string) string { return socketPath(dir) + ".keep" }

// worker holds the resources of a demo process.
type worker struct {
	role, dir string
	dev       driver.Device

	server *endpoint.Server // set in an owner
	store  *keeper.Process  // of an owner with a keeper
	served chan error
	client *endpoint.Client
	handle *endpoint.Handle
}

// do executes one request.
func (w *worker) do(ctx context.Context, r request) (reply, error) {
	if r.Op == opServe {
		return w.serve(ctx, r)
	}
	if w.client == nil {
		client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socketPath(w.dir), Devices: []driver.Device{w.dev}, Label: "demo " + w.role})
		if err != nil {
			return reply{}, err
		}
		w.client = client
	}
	switch {
	case r.Op == opPublish:
		return w.version(ctx, r, w.client.Publish)
	case r.Op == opAttach:
		return w.attach(ctx)
	case w.handle == nil:
		return reply{}, fmt.Errorf("%w: nothing is attached", driver.ErrInvalid)
	case r.Op == opCompute:
		return compute(ctx, w.handle.StateDict(), r.During)
	case r.Op == opReconnect:
		return reply{}, w.reconnect(ctx, r.Server)
	case r.Op == opHandOver:
		start := time.Now()
		version, err := w.client.Publish(ctx, modelName, w.handle.StateDict(), endpoint.PublishOptions{})
		return reply{Took: time.Since(start), Version: version}, err
	}
	return reply{}, fmt.Errorf("%w: unknown request %q", driver.ErrInvalid, r.Op)
}

// serve makes this process the owner.
func (w *worker) serve(ctx context.Context, r request) (answer reply, err error) {
	opts := endpoint.ServerOptions{Socket: socketPath(w.dir), Devices: []driver.Device{w.dev}, Label: "demo " + w.role}
	if r.Keep {
		if err := w.keep(); err != nil {
			return reply{}, err
		}
		opts.Keep = w.store
	}
	if w.server, err = endpoint.NewServer(opts); err != nil {
		return reply{}, err
	}
	if r.Seed != 0 {
		if answer, err = w.version(ctx, r, w.server.Publish); err != nil {
			return reply{}, err
		}
	}
	answer.Server, w.served = w.server.ID(), make(chan error, 1)
	go func() { w.served <- w.server.Serve(context.Background()) }()
	return answer, nil
}

// keep connects to the keeper, or starts it with the command line of this process.
func (w *worker) keep() (err error) {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	command := append([]string{program}, os.Args[1:len(os.Args)-2]...)
	w.store, err = keeper.Connect(keeper.Options{Socket: keeperPath(w.dir), Command: append(command, keeperRole, w.dir)})
	return err
}

// version loads or generates a version of the model, computes on it and publishes its memory. This process keeps no
// reference. The second version of a loaded model differs from the file in one bit.
func (w *worker) version(ctx context.Context, r request, publish func(context.Context, string, *module.StateDict, endpoint.PublishOptions) (uint64, error)) (answer reply, err error) {
	start := time.Now()
	var sd *module.StateDict
	if r.Path != "" {
		sd, err = module.Load(ctx, w.dev, r.Path, module.LoadOptions{})
	} else {
		sd, err = module.Synthesize(w.dev, module.Synthetic{Tensors: 32, Bytes: r.Size, Seed: r.Seed})
	}
	if err != nil {
		return reply{}, err
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	took := time.Since(start)
	if r.Path != "" && r.Seed > 1 {
		for _, t := range sd.All() {
			if data, err := tensor.RawData(t); err == nil && len(data) > 0 {
				data[0] ^= 1
				break
			}
		}
	}
	if answer, err = compute(ctx, sd, 0); err != nil {
		return reply{}, err
	}
	for _, s := range sd.Storages() {
		answer.Bytes += s.Bytes()
	}
	answer.Took = took
	answer.Version, err = publish(ctx, modelName, sd, endpoint.PublishOptions{})
	return answer, err
}

// attach maps the newest version, and then releases the previous one.
func (w *worker) attach(ctx context.Context) (reply, error) {
	start := time.Now()
	h, err := w.client.Acquire(ctx, modelName, endpoint.AcquireOptions{})
	if err != nil {
		return reply{}, err
	}
	answer := reply{Took: time.Since(start), Version: h.Version()}
	if w.handle != nil {
		err = w.handle.Close()
	}
	w.handle = h
	return answer, err
}

// compute reads every byte of the model in place, at least once and until the time has passed.
func compute(ctx context.Context, sd *module.StateDict, during time.Duration) (answer reply, err error) {
	for start := time.Now(); answer.Runs == 0 || time.Since(start) < during; answer.Runs++ {
		var sum uint32
		for name, t := range sd.All() {
			data, err := tensor.RawData(t)
			if err != nil {
				return reply{}, fmt.Errorf("tensor %q: %w", name, err)
			}
			sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), data)
			if ctx.Err() != nil {
				return reply{}, context.Cause(ctx)
			}
		}
		text := fmt.Sprintf("%08x", sum)
		if answer.Runs > 0 && text != answer.Sum {
			return reply{}, fmt.Errorf("run %d returned %s, the first run %s", answer.Runs+1, text, answer.Sum)
		}
		answer.Sum = text
	}
	return answer, nil
}

// reconnect waits until the client has automatically reconnected to another owner, which has not published the attached
// model.
func (w *worker) reconnect(ctx context.Context, server string) error {
	for {
		changed := w.handle.Changed() // before checking, so that no change is missed
		if w.handle.State() == endpoint.Orphaned {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// The handle may change before the connection is established; a request waits for it.
	if _, err := w.client.List(ctx); err != nil {
		return err
	}
	if got := w.client.ServerID(); got != server {
		return fmt.Errorf("connected to owner %q, want %q", got, server)
	}
	return nil
}

// close releases all resources, users before their dependencies.
func (w *worker) close() error {
	var errs []error
	if w.handle != nil {
		errs = append(errs, w.handle.Close())
	}
	if w.client != nil {
		errs = append(errs, w.client.Close())
	}
	if w.server != nil {
		errs = append(errs, w.server.Close())
	}
	if w.served != nil {
		if err := <-w.served; !errors.Is(err, endpoint.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	if w.store != nil {
		if p, err := os.FindProcess(w.store.PID()); err == nil {
			errs = append(errs, p.Kill()) // the demo leaves nothing behind
		}
		errs = append(errs, w.store.Close())
	}
	if strings.HasSuffix(w.role, "owner") {
		errs = append(errs, os.RemoveAll(w.dir))
	}
	return errors.Join(append(errs, w.dev.Close())...)
}
