package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/child"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// directoryPrefix begins the names of benchmark directories.
const directoryPrefix = "sharedtensor-bench-"

// passedBytes is the size of the memory that the order "pass" passes.
const passedBytes = 64 << 20

// order is a request to a worker.
type order struct {
	Do      string
	Socket  string
	Name    string
	Tensors int
	Bytes   int64
}

// report is the answer to an order.
type report struct {
	Took      time.Duration
	Anonymous int64
}

// worker is an owner, a client, or the peer of a bare socket, depending on its orders.
type worker struct {
	dev    *host.Device
	server *endpoint.Server
	served chan error
	client *endpoint.Client
}

// Work executes the orders in in and writes reports to out. When in ends, because the process of the benchmark has
// ended, it removes dir.
func Work(ctx context.Context, in io.Reader, out io.Writer, dir string) error {
	if !strings.HasPrefix(filepath.Base(dir), directoryPrefix) {
		return fmt.Errorf("%w: %s is not a directory of a benchmark", driver.ErrInvalid, dir)
	}
	dev, err := host.Open()
	if err != nil {
		return err
	}
	w := &worker{dev: dev}
	return errors.Join(child.Serve(ctx, in, out, w.do), os.RemoveAll(dir))
}

// do executes one order.
func (w *worker) do(ctx context.Context, o order) (r report, err error) {
	start := time.Now()
	switch o.Do {
	case "serve":
		w.server, err = endpoint.NewServer(endpoint.ServerOptions{Socket: o.Socket, Devices: []driver.Device{w.dev}, Label: "benchmark"})
		if err == nil {
			w.served = make(chan error, 1)
			go func() { w.served <- w.server.Serve(context.Background()) }()
		}
	case "publish":
		var specs []module.NamedSpec
		for i := range o.Tensors {
			specs = append(specs, module.NamedSpec{Name: fmt.Sprintf("model.layers.%d.weight", i), DType: tensor.Uint8, Shape: tensor.Shape{o.Bytes / int64(o.Tensors)}})
		}
		var sd *module.StateDict
		if sd, err = module.New(w.dev, specs); err == nil {
			_, err = w.server.Publish(ctx, o.Name, sd, endpoint.PublishOptions{})
			err = errors.Join(err, sd.Close())
		}
	case "withdraw":
		err = w.server.Withdraw(ctx, o.Name)
	case "shutdown":
		err = w.server.Shutdown(ctx)
		r.Took = time.Since(start)
		if served := <-w.served; !errors.Is(served, endpoint.ErrServerClosed) {
			err = errors.Join(err, served)
		}
	case "echo":
		err = listen(o.Socket, func(c *net.UnixConn) {
			var b [64]byte
			for {
				if _, err := io.ReadFull(c, b[:]); err != nil {
					return
				}
				if _, err := c.Write(b[:]); err != nil {
					return
				}
			}
		})
	case "pass":
		err = w.pass(o.Socket)
	case "acquire":
		w.client, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: o.Socket, Devices: []driver.Device{w.dev}})
		if err == nil {
			_, err = w.client.Acquire(ctx, o.Name, endpoint.AcquireOptions{})
		}
	case "measure":
		runtime.GC() // FreeOSMemory runs the second collection, which empties sync.Pools
		debug.FreeOSMemory()
		r.Anonymous, err = procField("/proc/self/status", "RssAnon:")
	default:
		err = fmt.Errorf("a worker cannot %q", o.Do)
	}
	return r, err
}

// listen serves bare connections on a separate socket, with one goroutine for each.
func listen(socket string, serve func(*net.UnixConn)) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return nil
}

// pass answers each byte on a bare socket with the descriptor of a memfd.
func (w *worker) pass(socket string) error {
	mem, err := w.dev.Alloc(passedBytes)
	if err != nil {
		return err
	}
	h, err := mem.Export()
	if err != nil {
		return err
	}
	return listen(socket, func(c *net.UnixConn) {
		rights := syscall.UnixRights(int(h.File.Fd()))
		var b [1]byte
		for {
			if _, err := c.Read(b[:]); err != nil {
				return
			}
			if _, _, err := c.WriteMsgUnix(b[:], rights, nil); err != nil {
				return
			}
		}
	})
}

// procField reads a size in kB from a file such as /proc/meminfo and returns it in bytes.
func procField(path, field string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, found := strings.CutPrefix(line, field); found {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %s %w", path, field, err)
			}
			return n * 1024, nil
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, field)
}
