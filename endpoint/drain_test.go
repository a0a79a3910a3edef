package endpoint_test

import (
	"context"
	"errors"
	stdlog "log"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// TestAServerThatDrainsEndsWhatRunsAndTakesNoMore shuts an owner down while a task runs and a call waits for it.
func TestAServerThatDrainsEndsWhatRunsAndTakesNoMore(t *testing.T) {
	hostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	gate := make(chan struct{})
	var began atomic.Int64
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "gated", func(ctx context.Context, n int) (int, error) {
		began.Add(1)
		select {
		case <-gate:
			return n + 1, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}, endpoint.Task(), endpoint.NoCache()))
	s := serve(t, endpoint.ServerOptions{Registry: r, Logger: discard()})
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitLimit)
	defer cancel()
	dial := func() *endpoint.Client {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	waiting, idle := dial(), dial()
	task, err := waiting.Submit(ctx, "gated", 1)
	require.NoError(t, err)
	type end struct {
		info endpoint.TaskInfo
		n    int
		err  error
	}
	waited, called, ended := make(chan end, 1), make(chan end, 1), make(chan error, 1)
	go func() {
		info, err := waiting.Wait(ctx, task.ID)
		waited <- end{info: info, err: err}
	}()
	go func() {
		n, err := endpoint.Call[int](ctx, waiting, "gated", 7)
		called <- end{n: n, err: err}
	}()
	eventually(t, waitLimit, "both run", func() bool { return began.Load() == 2 })
	go func() { ended <- s.Shutdown(ctx) }()

	refuses := func(c endpoint.Caller) func() bool {
		return func() bool {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // a client looks for another owner until then
			defer cancel()
			_, submitted := c.Submit(ctx, "gated", 1)
			called := c.Call(ctx, "gated", 2, nil)
			for _, err := range []error{submitted, called} { // they may have come before
				require.True(t, err == nil || errors.Is(err, endpoint.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded), "%v", err)
			}
			return errors.Is(submitted, endpoint.ErrUnavailable) && errors.Is(called, endpoint.ErrUnavailable)
		}
	}
	eventually(t, waitLimit, "the owner takes nothing of its own process", refuses(s))
	eventually(t, waitLimit, "nor of a client that waits", refuses(waiting))
	eventually(t, waitLimit, "nor of one that is idle", refuses(idle))
	select {
	case err := <-ended:
		require.Fail(t, "it did not wait for what runs", "%v", err)
	default:
	}

	close(gate)
	require.NoError(t, <-ended)
	got := <-called
	require.NoError(t, got.err)
	require.Equal(t, 8, got.n)
	if got := <-waited; got.err == nil { // the request may have come when the owner took no more
		require.EqualValues(t, "completed", got.info.State)
	} else {
		require.ErrorIs(t, got.err, endpoint.ErrUnavailable)
	}
}

// TestUsersThatAreAllowedMayConnect has processes of two users, of which the owner and the client of one allow each other.
func TestUsersThatAreAllowedMayConnect(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start processes as other users")
	}
	hostOnly(t, "the other user cannot read the stand-in for the driver")
	const guest, stranger = 65534, 65533
	socket := socketPath(t)
	o := start(t)
	o.must(command{Do: "serve", Socket: socket, UIDs: []uint32{guest}})
	o.must(command{Do: "publish", Name: "m", Seed: 1})
	// The files are the user's to open: the socket is made for him alone.
	require.NoError(t, os.Chmod(filepath.Dir(socket), 0o711))
	require.NoError(t, os.Chmod(socket, 0o666))
	as := func(uid uint32) *child {
		return start(t, func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			cmd.Path = copyForAll(t, cmd.Path)
		})
	}
	g := as(guest)
	require.Contains(t, g.ask(command{Do: "dial", Socket: socket}).Is, "permission", "it has to allow the owner too")
	g.must(command{Do: "dial", Socket: socket, UIDs: []uint32{0}})
	g.must(command{Do: "acquire", Name: "m", Key: "h"})
	g.must(command{Do: "check", Key: "h", Seed: 1})
	g.must(command{Do: "offer", Name: "n", Seed: 2})
	holders := o.must(command{Do: "books"}).Models[0].Versions[0].Holders
	require.Len(t, holders, 1)
	require.EqualValues(t, guest, holders[0].UID)
	a := as(stranger).ask(command{Do: "dial", Socket: socket, UIDs: []uint32{0}})
	require.Contains(t, a.Is, "permission")
	require.Contains(t, a.Error, "uid 65533")
}

// TestTheDefaultLoggerGetsWarningsOnly does what is logged on all levels, in an owner and a client that were given no logger.
func TestTheDefaultLoggerGetsWarningsOnly(t *testing.T) {
	hostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	log, before, out, flags := new(noted), slog.Default(), stdlog.Writer(), stdlog.Flags()
	slog.SetDefault(slog.New(log)) // which has package log write to it too
	t.Cleanup(func() {
		slog.SetDefault(before)
		stdlog.SetOutput(out)
		stdlog.SetFlags(flags)
	})
	s := serve(t, endpoint.ServerOptions{})
	ctx := context.Background()
	dev := testDevice(t)
	c, publish := publisher(t, s, dev)
	require.NoError(t, publish("m", 1))
	h, err := c.Acquire(ctx, "m")
	require.NoError(t, err)
	require.NoError(t, h.Close())
	require.NoError(t, c.Withdraw(ctx, "m"))
	require.NoError(t, c.Close())
	p := politePeer(t, s.Socket())
	require.NoError(t, p.conn.Send(3, 1, []byte{0xa0})) // a response, which no client sends
	eventually(t, waitLimit, "a warning is passed on", func() bool { return log.times("WARN client broke the protocol") == 1 })
	time.Sleep(10 * time.Millisecond)
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, said := range log.said {
		require.Regexp(t, "^(WARN|ERROR) ", said)
	}
}
