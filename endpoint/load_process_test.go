package endpoint_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// The tests of load and faults have processes of their own that need little of their parent: an owner that is asked
// through its endpoints, and clients that attach, call, say so in one line and wait to be killed.
const (
	loadEnv    = "ENDPOINT_TEST_LOAD" // "owner", or how many clients the process is
	loadSocket = "ENDPOINT_TEST_LOAD_SOCKET"
)

// fullEnv asks for the full counts: by default the tests do what tells of a mistake in a few seconds.
const fullEnv = "SHAREDTENSOR_LOAD"

// count is how often to do something: all times only when asked.
func count(t testing.TB, few, all int) int {
	if os.Getenv(fullEnv) == "" {
		return few
	}
	t.Logf("%d times", all)
	return all
}

func init() { // not in TestMain, which has children of its own
	role := os.Getenv(loadEnv)
	if role == "" {
		return
	}
	err := errors.ErrUnsupported
	if role == "owner" {
		err = serveLoad(os.Getenv(loadSocket))
	} else if n, convErr := strconv.Atoi(role); convErr == nil {
		err = holdModels(os.Getenv(loadSocket), n)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// loadCounts are what the functions of a load owner have seen.
type loadCounts struct {
	started, stopped atomic.Int64

	mu   sync.Mutex
	here int
	all  chan struct{} // closed when enough callers are there
}

// meet waits until n callers are there, or ctx ends.
func (c *loadCounts) meet(ctx context.Context, n int) error {
	c.mu.Lock()
	if c.all == nil {
		c.all = make(chan struct{})
	}
	all := c.all
	if c.here++; c.here == n {
		close(all)
		c.here, c.all = 0, nil
	}
	c.mu.Unlock()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// loadStats is what a load owner says of itself.
type loadStats struct {
	Started, Stopped        int64
	Files, Maps, Goroutines int
	Heap                    uint64
}

// loadRegistry has functions that wait, count and compute next to nothing.
func loadRegistry(c *loadCounts) *endpoint.Registry {
	r := endpoint.NewRegistry()
	err := errors.Join(
		endpoint.Register(r, "next", func(_ context.Context, n int) (int, error) { return n + 1, nil }),
		endpoint.Register(r, "meet", func(ctx context.Context, n int) (int, error) { return n, c.meet(ctx, n) }),
		endpoint.Register(r, "wait", func(ctx context.Context, quick bool) (bool, error) {
			if quick {
				return true, nil
			}
			c.started.Add(1)
			defer c.stopped.Add(1)
			<-ctx.Done()
			return false, context.Cause(ctx)
		}),
		endpoint.Register(r, "leave", func(_ context.Context, leave bool) (bool, error) {
			if leave {
				runtime.Goexit()
			}
			return true, nil
		}),
		endpoint.Register(r, "bytes", func(_ context.Context, n int) ([]byte, error) { return make([]byte, n), nil }),
		endpoint.Register(r, "same", func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x.Clone(), nil }),
		endpoint.Register(r, "stats", func(context.Context, struct{}) (loadStats, error) { return c.stats(), nil }),
	)
	if err != nil {
		panic(err)
	}
	return r
}

// stats counts what this process has, after a collection.
func (c *loadCounts) stats() loadStats {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return loadStats{
		Started: c.started.Load(), Stopped: c.stopped.Load(), Heap: m.HeapAlloc,
		Files: drivertest.OpenFiles(), Maps: drivertest.SharedMappings(), Goroutines: runtime.NumGoroutine(),
	}
}

// serveLoad is the main function of a load owner, which has the model m.
func serveLoad(socket string) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: socket, Devices: []driver.Device{dev}, Registry: loadRegistry(new(loadCounts)), Logger: discard(),
	})
	if err != nil {
		return err
	}
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 2, Bytes: 1 << 16})
	if err != nil {
		return err
	}
	defer sd.Close()
	if _, err := s.Publish(context.Background(), "m", sd); err != nil {
		return err
	}
	fmt.Println("serving")
	return s.Serve(context.Background())
}

// holdModels is the main function of a process that is n clients. Each acquires the model and calls.
func holdModels(socket string, n int) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	failures := make([]error, n)
	held = make([]*endpoint.Handle, n)
	for i := range n {
		all.Go(func() { held[i], failures[i] = holdModel(socket, dev, n > 1) })
	}
	all.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	fmt.Println("holding")
	select {}
}

// held are the handles of a process that holds models: they are not to be forgotten, and are never closed.
var held []*endpoint.Handle

func holdModel(socket string, dev driver.Device, calls bool) (*endpoint.Handle, error) {
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		return nil, err
	}
	h, err := c.Acquire(ctx, "m")
	if err != nil || !calls {
		return h, err
	}
	got, err := endpoint.Call[int](ctx, c, "next", 1)
	if err == nil && got != 2 {
		err = fmt.Errorf("2 is %d", got)
	}
	return h, err
}

// loadProcess starts a process in a role and waits for the word that it is ready.
func loadProcess(role, socket string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), loadEnv+"="+role, loadSocket+"="+socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		crash(cmd)
		return nil, fmt.Errorf("%s said %q: %w", role, line, err)
	}
	return cmd, nil
}

// crash ends a process at once.
func crash(cmd *exec.Cmd) {
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
}

// loadOwner is a process that owns the model m, with a client of it in this process.
func loadOwner(t testing.TB) (*exec.Cmd, *endpoint.Client) {
	t.Helper()
	hostOnly(t, "the device makes no difference to it")
	socket := socketPath(t)
	o, err := loadProcess("owner", socket)
	require.NoError(t, err)
	t.Cleanup(func() { crash(o) })
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{testDevice(t)}})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	keepCalling(t, c)
	return o, c
}

// keepCalling makes so many requests that the connection has all that it has in the end, its ring included.
func keepCalling(t testing.TB, c *endpoint.Client) {
	t.Helper()
	for range 40 {
		_, err := c.List(context.Background())
		require.NoError(t, err)
	}
}

// statsOf asks a load owner.
func statsOf(t testing.TB, c *endpoint.Client) loadStats {
	t.Helper()
	s, err := endpoint.Call[loadStats](context.Background(), c, "stats", struct{}{})
	require.NoError(t, err)
	return s
}

// settled waits until an owner has no more than before.
func settled(t testing.TB, c *endpoint.Client, before loadStats) {
	t.Helper()
	var now loadStats
	eventually(t, waitLimit, "descriptors, mappings and goroutines of the owner are back", func() bool {
		now = statsOf(t, c)
		return now.Files <= before.Files && now.Maps <= before.Maps && now.Goroutines <= before.Goroutines
	})
}

// residentBytes is the memory of a process that is in RAM and its own.
func residentBytes(t testing.TB, cmd *exec.Cmd) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			require.NoError(t, err)
			return kib << 10
		}
	}
	require.Fail(t, "no RssAnon")
	return 0
}
