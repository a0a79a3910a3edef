package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// order is a command for a worker, one JSON object per line on its standard input.
type order struct {
	Do      string `json:"do"`
	Socket  string `json:"socket,omitempty"`
	Name    string `json:"name,omitempty"`
	Tensors int    `json:"tensors,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	Count   int    `json:"count,omitempty"`
}

// report is the answer to an order, one JSON object per line on standard output.
type report struct {
	Error       string        `json:"error,omitempty"`
	OutOfMemory bool          `json:"out_of_memory,omitempty"`
	Took        time.Duration `json:"took,omitempty"`
	Anonymous   int64         `json:"anonymous,omitempty"`
}

// bareDescriptor is the descriptor of the worker's side of a bare socket to the process that started it.
const bareDescriptor = 3

// worker is an owner, a client, or the peer of a bare socket, depending on its orders.
type worker struct {
	dev     *host.Device
	bare    *net.UnixConn
	server  *endpoint.Server
	served  chan error
	clients []*endpoint.Client
	conns   []net.Conn

	mu   sync.Mutex
	tidy []string // directories to remove after the benchmark's process has ended
}

// Work executes the orders in in and writes reports to out. It returns when in ends, because the benchmark has finished
// or its process has ended; the caller should then exit. Descriptor 3 must be a socket to the benchmark's process.
func Work(in io.Reader, out io.Writer) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	bare, err := connOf(os.NewFile(bareDescriptor, "bare"))
	if err != nil {
		return fmt.Errorf("worker of a benchmark, not meant to be started by hand: %w", err)
	}
	w := &worker{dev: dev, bare: bare}
	lines := bufio.NewScanner(in)
	reply := json.NewEncoder(out)
	orders := make(chan order)
	go func() { // reads in the background, so that the end of in is noticed during an order
		for lines.Scan() {
			var o order
			if json.Unmarshal(lines.Bytes(), &o) != nil {
				break
			}
			orders <- o
		}
		w.removeDirectories()
		os.Exit(0)
	}()
	for o := range orders {
		var r report
		if err := w.do(o, &r); err != nil {
			r.Error, r.OutOfMemory = err.Error(), errors.Is(err, driver.ErrOutOfMemory)
		}
		if err := reply.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// do executes one order.
func (w *worker) do(o order, r *report) error {
	ctx := context.Background()
	switch o.Do {
	case "tidy":
		return w.tidyUp(o.Socket)
	case "serve":
		return w.serve(o.Socket)
	case "publish":
		sd, err := zeros(w.dev, o.Tensors, o.Bytes)
		if err != nil {
			return err
		}
		_, err = w.server.Publish(ctx, o.Name, sd)
		return errors.Join(err, sd.Close())
	case "withdraw":
		return w.server.Withdraw(context.Background(), o.Name)
	case "shutdown":
		start := time.Now()
		err := w.server.Shutdown(ctx)
		r.Took = time.Since(start)
		if served := <-w.served; !errors.Is(served, endpoint.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	case "echo":
		go echo(w.bare)
	case "pass":
		return w.pass(o.Bytes)
	case "accept":
		return w.accept(o.Socket)
	case "connect":
		return w.connect(ctx, o.Socket, o.Count)
	case "connect bare":
		return w.connectBare(o.Socket, o.Count)
	case "hang up":
		return w.hangUp()
	case "acquire":
		return w.acquire(ctx, o.Socket, o.Name)
	case "measure":
		return measureSelf(r)
	default:
		return fmt.Errorf("a worker cannot %q", o.Do)
	}
	return nil
}

// tidyUp records a directory of the benchmark to remove at the end.
func (w *worker) tidyUp(dir string) error {
	if !filepath.IsAbs(dir) || !strings.HasPrefix(filepath.Base(dir), directoryPrefix) {
		return fmt.Errorf("%w: %s is not a directory of a benchmark", driver.ErrInvalid, dir)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tidy = append(w.tidy, dir)
	return nil
}

// removeDirectories removes the directories that the benchmark's process has left, for example because it was killed.
func (w *worker) removeDirectories() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, dir := range w.tidy {
		_ = os.RemoveAll(dir)
	}
}

// serve starts an owner on the socket.
func (w *worker) serve(socket string) (err error) {
	w.server, err = endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{w.dev}, Label: "benchmark"})
	if err != nil {
		return err
	}
	w.served = make(chan error, 1)
	go func() { w.served <- w.server.Serve(context.Background()) }()
	return nil
}

// connect opens idle clients. Each has completed one request, so the owner has allocated everything for it.
func (w *worker) connect(ctx context.Context, socket string, count int) error {
	for range count {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
		if err != nil {
			return err
		}
		w.clients = append(w.clients, c)
		if _, err := c.Ping(ctx); err != nil {
			return err
		}
	}
	return nil
}

// hangUp closes the clients.
func (w *worker) hangUp() error {
	var errs []error
	for _, c := range w.clients {
		errs = append(errs, c.Close())
	}
	w.clients = nil
	return errors.Join(errs...)
}

// acquire connects a client that holds a model until the process is killed.
func (w *worker) acquire(ctx context.Context, socket, name string) error {
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{w.dev}})
	if err != nil {
		return err
	}
	w.clients = append(w.clients, c)
	_, err = c.Acquire(ctx, name)
	return err
}

// measureSelf reports the process's resident anonymous memory: heap, stacks and the Go runtime, after a collection that
// returns free memory to the kernel.
func measureSelf(r *report) (err error) {
	runtime.GC() // FreeOSMemory runs the second collection, which empties sync.Pools
	debug.FreeOSMemory()
	r.Anonymous, err = procField("/proc/self/status", "RssAnon:")
	return err
}
