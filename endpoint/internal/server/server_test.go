package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Shutdown wakes the accepting goroutine while calls run.
func TestServerShutdownDuringCalls(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for c.Call(ctx, "gated run", fixture.GateIn{Gate: "b21"}, nil) == nil {
			}
		})
	}
	_, err := c.Submit(ctx, "gated task", fixture.GateIn{Gate: "b21"})
	require.NoError(t, err)
	proctest.Eventually(t, fixture.WaitLimit, "it is at work", func() bool { return o.Ran("gated run") == 4 && o.Ran("gated task") == 1 })
	require.ErrorIs(t, shutdownError(o, 50*time.Millisecond), context.DeadlineExceeded, "what runs is cancelled when the time is over")
	require.Less(t, closeServer(o), fixture.Promptly)
	_, err = os.Lstat(c.Socket())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, c.Close())
	calls.Wait()
}

// Close does not wait for tasks.
func TestServerCloseDuringTasks(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	_, err := c.Submit(ctx, "gated task", fixture.GateIn{Gate: "b22"})
	require.NoError(t, err)
	proctest.Eventually(t, fixture.WaitLimit, "it is at work", func() bool { return o.Ran("gated task") == 1 })
	// Even a function that ignores its context delays it for at most a second.
	_, err = c.Submit(ctx, "stubborn", fixture.GateIn{Gate: "b22"})
	require.NoError(t, err)
	proctest.Eventually(t, fixture.WaitLimit, "it is at work", func() bool { return o.Ran("stubborn") == 1 })
	require.Less(t, closeServer(o), fixture.Promptly)
}

// Closing an owner leaves the sockets of others in place.
func TestSocketCloseLeavesOthers(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	_, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	_, err = nodepkg.Open(context.Background(), nodepkg.Options{Mode: nodepkg.ModeServer, Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	local, err := nodepkg.Open(context.Background(), nodepkg.Options{Mode: nodepkg.ModeLocal, Socket: socket})
	require.NoError(t, err)
	require.NoError(t, local.Close())
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	defer c.Close()

	// An owner whose socket file was removed leaves a new file at the path in place.
	require.NoError(t, os.Remove(socket))
	stranger, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer stranger.Close()
	closeServer(o)
	_, err = os.Lstat(socket)
	require.NoError(t, err)
}

// A second owner on a socket is refused.
func TestSocketSecondServe(t *testing.T) {
	t.Parallel()
	_, socket := fixture.Owner(t)
	second := fixture.Start(t)
	err := second.ServeError(socket)
	require.ErrorIs(t, err, endpoint.ErrInUse)
	require.ErrorContains(t, err, socket)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err, "the first one is not disturbed")
	require.NoError(t, c.Close())
}

// Owners are ended by unhandled signals. The remaining socket file does not stop the next owner, which starts at once;
// former clients connect to it.
func TestSocketAfterSignal(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	o := fixture.Start(t)
	o.Serve(socket)
	c := fixture.Client(t, socket)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		o.Signal(signal)
		require.Equal(t, signal, o.Wait().Sys().(syscall.WaitStatus).Signal())
		_, err := os.Lstat(socket)
		require.NoError(t, err, "the child does not handle the signal, so the file is still there")
		o = fixture.Start(t)
		id := o.Serve(socket)
		proctest.Eventually(t, fixture.WaitLimit, "the client is with the next owner", func() bool { return fixture.Attempt(c, fixture.PingOp, fixture.None{}) == nil })
		fresh, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
		require.NoError(t, err)
		require.Equal(t, id, fresh.ServerID())
		require.NoError(t, fresh.Close())
	}
	closeServer(o)
	require.NoFileExists(t, socket)
}

// Idle connections do not block the server.
func TestSessionIdleConnections(t *testing.T) {
	t.Parallel()
	_, socket := fixture.Owner(t)
	ctx := context.Background()
	for range 64 {
		silent, err := net.Dial("unix", socket)
		require.NoError(t, err)
		defer silent.Close()
		idle, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
		require.NoError(t, err)
		defer idle.Close()
	}
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	defer c.Close()
	n, err := endpoint.Call[int](ctx, c, "double", struct{ N int }{2})
	require.NoError(t, err)
	require.Equal(t, 4, n)
}

// Clients that wait for tasks do not block calls.
func TestTaskWaitersHoldUpNoCall(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	var all sync.WaitGroup
	ids := make(chan string, 64)
	for i := range 32 { // joiners of one run, tasks that wait for a worker, calls that wait for tasks, waits
		all.Go(func() {
			if err := c.Call(ctx, "gated", fixture.GateIn{Gate: "b30"}, nil); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := c.Call(ctx, "gated task", fixture.GateIn{Gate: "b30", N: i}, nil); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			info, err := c.Submit(ctx, "gated cached task", fixture.GateIn{Gate: "b30"})
			ids <- info.ID
			if err == nil {
				_, err = info.Wait(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	proctest.Eventually(t, fixture.WaitLimit, "all wait", func() bool {
		server, err := c.ServerInfo(ctx)
		return err == nil && server.Stats.Tasks == 64 && server.Stats.TasksRunning > 0 && o.Ran("gated") == 1
	})
	_, err := c.Ping(ctx)
	require.NoError(t, err)
	n, err := endpoint.Call[int](ctx, c, "double", struct{ N int }{3})
	require.NoError(t, err)
	require.Equal(t, 6, n)
	fixture.OpenGate(t, c, "b30")
	all.Wait()
}

// A call without a server fails quickly.
func TestClientCallWithoutServer(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	defer c.Close()
	o.Kill()
	proctest.Eventually(t, fixture.WaitLimit, "a ping fails at once, without waiting for an owner", func() bool {
		_, err := c.Ping(ctx)
		return errors.Is(err, endpoint.ErrUnavailable)
	})
	proctest.Eventually(t, fixture.WaitLimit, "a call waits for an owner as long as its context lasts", func() bool {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		err := c.Call(short, "double", nil, nil)
		require.ErrorIs(t, err, endpoint.ErrUnavailable) // at first possibly the broken connection
		return errors.Is(err, context.DeadlineExceeded)
	})
}

// Processes connect to an owner that does not accept yet, many more than the kernel's queue holds.
func TestClientDialConcurrently(t *testing.T) {
	t.Parallel()
	const processes, each, queue = 4, 50, 8
	socket := proctest.SocketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	raw, err := l.SyscallConn()
	require.NoError(t, err)
	s, err := endpoint.NewServer(endpoint.ServerOptions{Listener: l})
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), queue) })) // NewServer has set another length
	require.NoError(t, err)
	var served sync.WaitGroup
	defer served.Wait()
	defer s.Close()
	failures := make(chan error, processes)
	for range processes {
		c := fixture.Start(t)
		go func() { failures <- fixture.Attempt(c, dialManyOp, crowd{socket, each}) }()
	}
	proctest.Eventually(t, fixture.WaitLimit, "the queue is full", func() bool {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		require.NoError(t, err)
		defer syscall.Close(fd)
		require.NoError(t, syscall.SetNonblock(fd, true))
		return errors.Is(syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}), syscall.EAGAIN)
	})
	served.Go(func() { s.Serve(context.Background()) })
	for range processes {
		require.NoError(t, <-failures)
	}
}

// otherDevice has the type and index of another device and a different UUID, like a GPU in a process that sees other
// GPUs.
type otherDevice struct{ driver.Device }

// Info implements [driver.Device].
func (d otherDevice) Info() driver.Info {
	info := d.Device.Info()
	info.UUID[0] ^= 0xff
	return info
}

// Devices are identified by UUID.
func TestDeviceByUUID(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m"})
	ctx := context.Background()
	dev := fixture.Device(t)
	other := otherDevice{dev}
	require.Equal(t, dev.Info().Index, other.Info().Index)
	require.Equal(t, dev.Info().Type, other.Info().Type)
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(other)})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, dev.Info().UUID.String())
	_, err = endpoint.Call[*tensor.Tensor](ctx, c, "plain model", fixture.ModelIn{Size: 4})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	var unsupported *driver.UnsupportedError
	require.ErrorAs(t, err, &unsupported)

	right, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{other, dev}})
	require.NoError(t, err)
	defer right.Close()
	x, err := endpoint.Call[*tensor.Tensor](ctx, right, "plain model", fixture.ModelIn{Size: 4})
	require.NoError(t, err, "of two devices with one number the UUID tells which it is")
	require.Same(t, dev, x.Device())
	require.NoError(t, x.Close())
}

// Handles name their device by UUID.
func TestDeviceOfHandles(t *testing.T) {
	drivertest.Leaks(t)
	_, socket := fixture.Owner(t)
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket}) // this process has no device
	require.NoError(t, err)
	defer c.Close()
	_, err = endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	var unsupported *driver.UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	proctest.Eventually(t, fixture.WaitLimit, "the reference to what could not be mapped went back", func() bool {
		server, err := c.ServerInfo(ctx)
		return err == nil && server.Stats.Objects == 0
	})
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.NotEmpty(t, server.Devices[0].UUID)
}

// A received payload is never executed.
func TestHostilePayloadIsNotExecuted(t *testing.T) {
	t.Parallel()
	_, socket := fixture.Owner(t)
	for path, mode := range map[string]os.FileMode{socket: 0o600, filepath.Dir(socket): 0o700} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}
	raw, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer raw.Close()
	// A pickle that would run a command, in a frame of the library that unpickled its input.
	owned := filepath.Join(t.TempDir(), "owned")
	pickle := "cposix\nsystem\n(S'touch " + owned + "'\ntR."
	_, err = raw.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(pickle))), pickle...))
	require.NoError(t, err)
	require.NoError(t, raw.SetReadDeadline(time.Now().Add(fixture.WaitLimit)))
	for {
		if _, err = raw.Read(make([]byte, 4096)); err != nil {
			break
		}
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the owner hangs up")
	require.NoFileExists(t, owned)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// peakMemory returns the peak resident memory of a process in bytes.
func peakMemory(t *testing.T, pid int32) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(status), "VmHWM:")
	drivertest.Needs(t, "procfs", found, "the kernel does not tell the peak of a process's memory")
	var kib int64
	_, err = fmt.Sscan(after, &kib)
	require.NoError(t, err)
	return kib << 10
}

// Claimed sizes over the limits are refused before memory is allocated.
func TestLimitsBeforeAllocation(t *testing.T) {
	drivertest.Leaks(t)
	const limit, large = 1 << 20, 60 << 20
	c, o := fixture.ClientOfOwnerWith(t, fixture.Service{Frame: limit})
	ctx := context.Background()
	type in struct{ Data []byte }
	require.NoError(t, c.Call(ctx, "bytes", in{make([]byte, limit/2)}, nil))
	before := peakMemory(t, o.PID())
	for range 3 {
		err := c.Call(ctx, "bytes", in{make([]byte, large)}, nil)
		require.ErrorIs(t, err, endpoint.ErrProtocol, "the owner takes no frame of that size")
		require.ErrorContains(t, err, "larger than the limit")
	}
	for _, claim := range []uint32{large, math.MaxUint32} { // of bytes that never arrive
		raw, err := net.Dial("unix", c.Socket())
		require.NoError(t, err)
		defer raw.Close()
		_, err = raw.Write(append(binary.BigEndian.AppendUint32(nil, claim), 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1))
		require.NoError(t, err)
		require.NoError(t, raw.SetReadDeadline(time.Now().Add(fixture.WaitLimit)))
		_, err = io.Copy(io.Discard, raw)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the owner hangs up")
	}
	require.Less(t, peakMemory(t, o.PID())-before, int64(large/2), "of what is refused nothing is kept, not even for a moment")

	small, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: c.Socket(), Limits: wire.Limits{Frame: 1 << 16}})
	require.NoError(t, err)
	defer small.Close()
	require.ErrorIs(t, small.Call(ctx, "bytes", in{make([]byte, 1<<17)}, nil), wire.ErrTooLarge, "refused before it is sent")
	_, err = small.Ping(ctx)
	require.NoError(t, err, "the connection goes on")
}

// shutdownError is the error of a shutdown that has to fail.
func shutdownError(c *fixture.Child, limit time.Duration) error {
	c.T.Helper()
	return fixture.Failure(c, fixture.ShutdownOp, limit)
}

// closeServerOp closes an owner. Its result is how long that took.
var closeServerOp = fixture.NewOp("close server", func(w *fixture.Worker, _ context.Context, _ fixture.None) (time.Duration, error) {
	return fixture.Timed(w.Server.Close)
})

// closeServer closes an owner, and returns how long that took.
func closeServer(c *fixture.Child) time.Duration {
	c.T.Helper()
	return closeServerOp.Must(c.Process, fixture.None{})
}

// crowd is a number of clients of a socket.
type crowd struct {
	Socket  string
	Clients int
}

// dialManyOp connects clients at once. Each pings and disconnects.
var dialManyOp = fixture.NewOp("dial many", func(_ *fixture.Worker, ctx context.Context, in crowd) (_ fixture.None, err error) {
	errs := make(chan error, in.Clients)
	for range in.Clients {
		go func() {
			c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: in.Socket})
			if err == nil {
				_, err = c.Ping(ctx)
				c.Close()
			}
			errs <- err
		}()
	}
	for range in.Clients {
		err = errors.Join(err, <-errs)
	}
	return fixture.None{}, err
})
