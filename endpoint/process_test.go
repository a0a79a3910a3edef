package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
)

func TestMain(m *testing.M) {
	if onGPU() && !proctest.HasRole() {
		// The driver keeps descriptors and mappings from its first use to the end of the process. They are no leaks of a test.
		dev, err := openDevice()
		if err == nil {
			err = dev.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	proctest.Main(m)
}

// workers are the processes of most tests, owners or clients according to their commands.
var workers = proctest.NewRole("worker", sentinels, newWorker)

// sentinels are the errors that children report by name.
var sentinels = map[string]error{
	"not found": endpoint.ErrNotFound, "invalid": endpoint.ErrInvalid, "in use": endpoint.ErrInUse, "permission": endpoint.ErrPermission,
	"unavailable": endpoint.ErrUnavailable, "limit": endpoint.ErrLimit, "protocol": endpoint.ErrProtocol, "closed": endpoint.ErrClosed,
	"unsupported": errors.ErrUnsupported, "deadline": context.DeadlineExceeded, "handle": driver.ErrHandle,
	"not exist": os.ErrNotExist,
}

// child is a worker under test.
type child struct {
	*proctest.Process[worker]
	t testing.TB
}

// start starts a child, which ends with the test at the latest.
func start(t testing.TB, configure ...func(*exec.Cmd)) *child {
	t.Helper()
	return &child{workers.Start(t, configure...), t}
}

// opTimeout limits a command of a worker without its own time limit, so it is the duration of a hang.
const opTimeout = time.Minute

// none is an empty argument or result of a command.
type none = struct{}

// op adds a command to workers. Its context ends after opTimeout.
func op[In, Out any](name string, do func(w *worker, ctx context.Context, in In) (Out, error)) proctest.Op[worker, In, Out] {
	return proctest.NewOp(workers, name, func(w *worker, in In) (Out, error) {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		defer cancel()
		return do(w, ctx, in)
	})
}

// within returns ctx with a time limit; no limit if it is 0.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// timed returns the duration of do.
func timed(do func() error) (time.Duration, error) {
	start := time.Now()
	err := do()
	return time.Since(start), err
}

// attempt returns the error of a command that may succeed.
func attempt[In, Out any](c *child, o proctest.Op[worker, In, Out], in In) error {
	c.t.Helper()
	_, err := o.Ask(c.Process, in)
	return err
}

// failure returns the error of a command that must fail.
func failure[In, Out any](c *child, o proctest.Op[worker, In, Out], in In) error {
	c.t.Helper()
	err := attempt(c, o, in)
	require.Error(c.t, err)
	return err
}

// owner starts a process that serves on a fresh socket.
func owner(t testing.TB) (*child, string) {
	t.Helper()
	socket := proctest.SocketPath(t)
	o := start(t)
	o.serve(socket)
	return o, socket
}

// client starts a process that is connected to the socket.
func client(t testing.TB, socket string) *child {
	t.Helper()
	c := start(t)
	c.dial(socket)
	return c
}

// synthetic returns a model whose content depends on the seed.
func synthetic(dev driver.Device, m model) (*module.StateDict, error) {
	s := module.Synthetic{Seed: m.Seed, Tensors: 3, Bytes: 1 << 16}
	if m.Tensors > 0 {
		s.Tensors = m.Tensors
	}
	if m.Bytes > 0 {
		s.Bytes = m.Bytes
	}
	return module.Synthesize(dev, s)
}

// listOf returns what s has published.
func listOf(s *endpoint.Server) []endpoint.ModelInfo {
	list, _ := s.List(context.Background()) // fails only if its context has ended
	return list
}

func destroyObject(t testing.TB, s *endpoint.Server, id string) {
	t.Helper()
	_, err := s.Destroy(context.Background(), id)
	require.NoError(t, err)
}

// publishOn publishes sd and takes ownership of it.
func publishOn(t testing.TB, s *endpoint.Server, name string, sd *module.StateDict) uint64 {
	t.Helper()
	version, err := s.Publish(context.Background(), name, sd, endpoint.PublishOptions{})
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	return version
}
