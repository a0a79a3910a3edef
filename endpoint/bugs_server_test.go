package endpoint_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

func TestB21ShutdownEndsUnderLoad(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := calling(t)
	ctx := context.Background()
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for c.Call(ctx, "gated run", gateIn{Gate: "b21"}, nil) == nil {
			}
		})
	}
	_, err := c.Submit(ctx, "gated task", gateIn{Gate: "b21"})
	require.NoError(t, err)
	eventually(t, waitLimit, "it is at work", func() bool { return ran(o, "gated run") == 4 && ran(o, "gated task") == 1 })
	require.Contains(t, o.ask(command{Do: "shutdown", Millis: 50}).Is, "deadline", "what runs is cancelled when the time is over")
	require.Less(t, o.must(command{Do: "close server"}).Millis, 1000.0)
	_, err = os.Lstat(c.Socket())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, c.Close())
	calls.Wait()
}

func TestB22CloseDoesNotWaitForTasks(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := calling(t)
	ctx := context.Background()
	_, err := c.Submit(ctx, "gated task", gateIn{Gate: "b22"})
	require.NoError(t, err)
	eventually(t, waitLimit, "it is at work", func() bool { return ran(o, "gated task") == 1 })
	// Even a function that does not heed its context holds it up for no more than a second.
	_, err = c.Submit(ctx, "stubborn", gateIn{Gate: "b22"})
	require.NoError(t, err)
	eventually(t, waitLimit, "it is at work", func() bool { return ran(o, "stubborn") == 1 })
	require.Less(t, o.must(command{Do: "close server"}).Millis, 3000.0)
}

func TestB23ClosingLeavesTheSocketOfAnotherAlone(t *testing.T) {
	o, socket := owner(t)
	_, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	_, err = endpoint.Open(context.Background(), endpoint.Options{Mode: endpoint.ModeServer, Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	local, err := endpoint.Open(context.Background(), endpoint.Options{Mode: endpoint.ModeLocal, Socket: socket})
	require.NoError(t, err)
	require.NoError(t, local.Close())
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	defer c.Close()

	// An owner whose socket file was taken from it leaves the one that stands there now alone.
	require.NoError(t, os.Remove(socket))
	stranger, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer stranger.Close()
	o.must(command{Do: "close server"})
	_, err = os.Lstat(socket)
	require.NoError(t, err)
}

func TestB24ASecondOwnerIsRefused(t *testing.T) {
	_, socket := owner(t)
	second := start(t)
	a := second.ask(command{Do: "serve", Socket: socket})
	require.Contains(t, a.Is, "in use")
	require.Contains(t, a.Error, socket)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err, "the first one is not disturbed")
	require.NoError(t, c.Close())
}

func TestB25AServerThatCannotStartSaysSo(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "a", "b", "s.sock")
	_, err := endpoint.NewServer(endpoint.ServerOptions{Socket: missing})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = endpoint.Open(context.Background(), endpoint.Options{Mode: endpoint.ModeServer, Socket: missing})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestB26ASocketFileOfADeadOwnerIsNoObstacle(t *testing.T) {
	o, socket := owner(t)
	require.NoError(t, o.cmd.Process.Signal(syscall.SIGTERM))
	o.cmd.Wait()
	_, err := os.Lstat(socket)
	require.NoError(t, err, "the child does not handle the signal, so the file is still there")
	next := start(t)
	next.must(command{Do: "serve", Socket: socket})
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestB28ReadyIsAnnouncedAfterAllRegistrations(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	socket := socketPath(t)
	node, err := endpoint.Open(ctx, endpoint.Options{Mode: endpoint.ModeServer, Socket: socket})
	require.NoError(t, err)
	defer node.Close()
	var registered bool
	early := make(chan error, 1)
	go func() {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
		if err == nil {
			_, err = endpoint.Call[bool](ctx, c, "last", nil)
			c.Close()
		}
		early <- err
	}()
	info, err := node.Info(ctx)
	require.NoError(t, err)
	require.True(t, info.ServerRunning)
	require.False(t, info.ServerReady)
	for _, name := range []string{"first", "last"} {
		_, err = endpoint.Share(node, name, func(context.Context, struct{}) (bool, error) { return registered, nil })
		require.NoError(t, err)
	}
	registered = true
	node.Ready()
	node.Ready()
	require.NoError(t, <-early, "who came before waited, and found all endpoints")
	info, err = node.Info(ctx)
	require.NoError(t, err)
	require.True(t, info.ServerReady)
	require.Equal(t, 2, info.Registered)
}

func TestB29IdleConnectionsStopNobody(t *testing.T) {
	_, socket := owner(t)
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

func TestB30WaitersHoldUpNobody(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := calling(t)
	ctx := context.Background()
	var all sync.WaitGroup
	ids := make(chan string, 64)
	for i := range 32 { // joiners of one run, tasks that wait for a worker, calls that wait for tasks, waits
		all.Go(func() {
			if err := c.Call(ctx, "gated", gateIn{Gate: "b30"}, nil); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := c.Call(ctx, "gated task", gateIn{Gate: "b30", N: i}, nil); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			info, err := c.Submit(ctx, "gated cached task", gateIn{Gate: "b30"})
			ids <- info.ID
			if err == nil {
				_, err = c.Wait(ctx, info.ID)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, waitLimit, "all wait", func() bool {
		server, err := c.ServerInfo(ctx)
		return err == nil && server.Stats.Tasks == 64 && server.Stats.TasksRunning > 0 && ran(o, "gated") == 1
	})
	_, err := c.Ping(ctx)
	require.NoError(t, err)
	n, err := endpoint.Call[int](ctx, c, "double", struct{ N int }{3})
	require.NoError(t, err)
	require.Equal(t, 6, n)
	_, err = c.Release(ctx, "nothing")
	require.NoError(t, err)
	open(t, c, "b30")
	all.Wait()
}

func TestB30TasksMayCallTasks(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	s := serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Workers: 2}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	defer c.Close()
	type in struct{ Depth, Width int }
	for name, through := range map[string]endpoint.Caller{"over the socket": c, "within the process": s} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, endpoint.Register(r, name, func(ctx context.Context, call in) (int, error) {
				sum := 1
				for i := range min(call.Depth, 1) * call.Width {
					n, err := endpoint.Call[int](ctx, through, name, in{call.Depth - 1, call.Width - i})
					if err != nil {
						return 0, err
					}
					sum += n
				}
				return sum, nil
			}, endpoint.Task(), endpoint.NoCache()))
			results := make(chan error, 4)
			for range cap(results) {
				go func() { results <- through.Call(ctx, name, in{Depth: 3, Width: 2}, nil) }()
			}
			for range cap(results) {
				require.NoError(t, <-results)
			}
		})
	}
}

func TestB31ACallOfAnAbsentOwnerEndsWithItsContext(t *testing.T) {
	o, socket := owner(t)
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	defer c.Close()
	o.kill()
	eventually(t, waitLimit, "a ping fails at once, without waiting for an owner", func() bool {
		_, err := c.Ping(ctx)
		return errors.Is(err, endpoint.ErrUnavailable)
	})
	eventually(t, waitLimit, "a call waits for an owner as long as its context lasts", func() bool {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		err := c.Call(short, "double", nil, nil)
		require.ErrorIs(t, err, endpoint.ErrUnavailable) // at first also that the connection broke
		return errors.Is(err, context.DeadlineExceeded)
	})
}

func TestB32ManyConnectAtOnce(t *testing.T) {
	socket := socketPath(t)
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
	require.NoError(t, err)
	var served sync.WaitGroup
	defer served.Wait()
	defer s.Close()
	ctx := context.Background()
	var all sync.WaitGroup
	for range 200 { // nobody accepts yet
		all.Go(func() {
			c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Wait: true})
			if err == nil {
				_, err = c.Ping(ctx)
				c.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	served.Go(func() { s.Serve() })
	all.Wait()
}

func TestB35MemoryIsNamedByItsDevice(t *testing.T) {
	drivertest.Leaks(t)
	_, socket := owner(t)
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket}) // this process knows no device at all
	require.NoError(t, err)
	defer c.Close()
	_, err = endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", modelIn{Size: 4})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	var unsupported *driver.UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	eventually(t, waitLimit, "the reference to what could not be mapped went back", func() bool {
		server, err := c.ServerInfo(ctx)
		return err == nil && server.Stats.Objects == 0
	})
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.NotEmpty(t, server.Devices[0].UUID)
}

func TestB36NothingReceivedIsExecutedAndNobodyElseIsServed(t *testing.T) {
	_, socket := owner(t)
	for path, mode := range map[string]os.FileMode{socket: 0o600, filepath.Dir(socket): 0o700} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}
	raw, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer raw.Close()
	// A pickle that would run a command.
	_, err = raw.Write([]byte("\x00\x00\x00\x2acposix\nsystem\n(S'touch /tmp/owned'\ntR."))
	require.NoError(t, err)
	require.NoError(t, raw.SetReadDeadline(time.Now().Add(waitLimit)))
	for {
		if _, err = raw.Read(make([]byte, 4096)); err != nil {
			break
		}
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the owner hangs up")
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestB38LimitsHoldBeforeMemoryIsTaken(t *testing.T) {
	drivertest.Leaks(t)
	c, _ := callingWith(t, command{Bytes: 1 << 20})
	ctx := context.Background()
	type in struct{ Data []byte }
	require.NoError(t, c.Call(ctx, "bytes", in{make([]byte, 1<<19)}, nil))
	require.Error(t, c.Call(ctx, "bytes", in{make([]byte, 1<<21)}, nil), "the owner takes no frame of that size")

	small, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: c.Socket(), Limits: wire.Limits{Frame: 1 << 16}})
	require.NoError(t, err)
	defer small.Close()
	require.ErrorIs(t, small.Call(ctx, "bytes", in{make([]byte, 1<<17)}, nil), wire.ErrTooLarge, "refused before it is sent")
	_, err = small.Ping(ctx)
	require.NoError(t, err, "the connection goes on")
}
