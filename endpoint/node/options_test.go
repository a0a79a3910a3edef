package node_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// in starts a child with a node whose role is given by its environment or the options.
func in(t *testing.T, opts nodeOptions, env ...string) (*fixture.Child, opened) {
	t.Helper()
	c := fixture.Start(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, env...) })
	return c, openNode(c, opts)
}

// serving starts a child that serves what it shares.
func serving(t *testing.T, opts nodeOptions, env ...string) (*fixture.Child, opened) {
	t.Helper()
	c, a := in(t, opts, env...)
	share(c)
	ready(c)
	return c, a
}

// Log lines contain values.
func TestLogValues(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	o, _ := serving(t, nodeOptions{Mode: "server", Socket: socket})
	c, _ := in(t, nodeOptions{Mode: "client", Socket: socket})
	share(c)
	err := burstError(c)
	require.ErrorContains(t, err, "no such luck")
	require.NotContains(t, err.Error(), "goroutine", "the stack stays with the owner")
	log := logOf(o)
	require.Contains(t, log, "endpoint=burst")
	require.Contains(t, log, "no such luck")
	require.Contains(t, log, "goroutine")
	require.Empty(t, logOf(c))
}

// Misspelt options and arguments are errors.
func TestOptionsMisspelt(t *testing.T) {
	t.Parallel()
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	err := c.Call(ctx, "model", map[string]any{"size": 4, "lable": "x"}, nil)
	require.ErrorIs(t, err, message.CodeSerialization)
	require.ErrorContains(t, err, `"lable"`)
	require.ErrorContains(t, c.Call(ctx, "sum", map[string]any{"z": 1}, nil), `"z"`, "in arguments with tensors too")
	require.Zero(t, o.Ran("model"))
	r := endpoint.NewRegistry()
	err = endpoint.Register(r, "x", func(context.Context, fixture.ModelIn) (int, error) { return 0, nil }, endpoint.CacheKey("{seize}"))
	require.ErrorIs(t, err, endpoint.ErrInvalid)
	require.ErrorContains(t, err, `"seize"`)
}

// One program runs in three processes, each in another role.
func TestNodeShareBetweenProcesses(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	pids := map[string]int32{}
	for _, role := range []string{"local", "server", "client"} {
		p, a := serving(t, nodeOptions{Mode: role, Socket: socket})
		require.Equal(t, role, a.Mode)
		pids[role] = p.PID()
		require.Equal(t, doubled{"*tensor.Tensor", 8}, twice(p, 4), role)
		ran := pids[role]
		if role == "client" {
			ran = pids["server"]
		}
		require.Equal(t, ran, where(p), role)
	}
}

// Options of the program override the environment.
func TestOptionsBeforeEnvironment(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(proctest.SocketPath(t))
	base, arg := filepath.Join(dir, "env"), filepath.Join(dir, "arg")
	env := []string{envBasePath + "=" + base, envEnabled + "=1", envRole + "=server"}
	owners := map[string]*fixture.Child{}
	for _, row := range []struct {
		opts         nodeOptions
		mode, socket string
	}{
		{nodeOptions{}, "server", base + "-0.sock"},
		{nodeOptions{BasePath: arg}, "server", arg + "-0.sock"},
		{nodeOptions{BasePath: arg, Device: 3}, "server", arg + "-3.sock"},
		{nodeOptions{BasePath: base, Socket: arg}, "server", arg},
		{nodeOptions{Mode: "local"}, "local", ""},
	} {
		o, a := serving(t, row.opts, env...)
		require.Equal(t, row.mode, a.Mode)
		require.Equal(t, row.socket, a.Socket)
		owners[row.socket] = o
	}

	// A client without a node finds its owner by the same variable, unless the program names a socket.
	c := fixture.Start(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, env...) })
	require.Equal(t, base+"-0.sock", dialDefault(c))
	c.Dial(arg + "-0.sock")
	closeNode(owners[base+"-0.sock"])
	require.ErrorIs(t, dialDefaultError(c), endpoint.ErrUnavailable)
	c.Dial(arg + "-3.sock")

	_, err := nodepkg.Open(context.Background(), nodepkg.Options{DeviceIndex: -1})
	require.ErrorIs(t, err, endpoint.ErrInvalid)
}

func TestNodeAutoRole(t *testing.T) {
	base := filepath.Join(filepath.Dir(proctest.SocketPath(t)), "auto")
	owner, err := endpoint.NewServer(endpoint.ServerOptions{Socket: base + "-0.sock"})
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- owner.Serve(context.Background()) }()
	for _, row := range []struct {
		enabled, role string
		mode          nodepkg.Mode
		err           error
	}{
		{"", "", nodepkg.ModeLocal, nil},
		{"", "server", nodepkg.ModeLocal, nil},
		{"0", "client", nodepkg.ModeLocal, nil},
		{"maybe", "client", nodepkg.ModeLocal, nil},
		{"1", "", nodepkg.ModeClient, nil},
		{" TRUE ", " Client ", nodepkg.ModeClient, nil},
		{"yes", "local", nodepkg.ModeLocal, nil},
		{"on", "server", 0, endpoint.ErrInUse}, // an owner is running
		{"on", "sever", 0, endpoint.ErrInvalid},
		{"on", "auto", 0, endpoint.ErrInvalid},
	} {
		t.Setenv(envEnabled, row.enabled)
		t.Setenv(envRole, row.role)
		node, err := nodepkg.Open(context.Background(), nodepkg.Options{BasePath: base})
		if row.err != nil {
			require.ErrorIs(t, err, row.err, "%+v", row)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, row.mode, node.Mode(), "%+v", row)
		info, err := node.Info(context.Background())
		require.NoError(t, err)
		require.True(t, info.Auto)
		require.NoError(t, node.Close())
	}
	require.NoError(t, owner.Close())
	require.ErrorIs(t, <-served, endpoint.ErrServerClosed)
	_, err = nodepkg.Open(context.Background(), nodepkg.Options{Mode: nodepkg.ModeClient, BasePath: base})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
}

// The caller's deadline reaches the function.
func TestCallDeadlineReachesFunction(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Call(short, "gated run", fixture.GateIn{Gate: "never"}, nil), context.DeadlineExceeded)
	proctest.Eventually(t, fixture.WaitLimit, "the function is told to stop", func() bool { return o.Ran("gated run told to stop") == 1 })
	require.ErrorIs(t, c.Call(ctx, "hurried", fixture.GateIn{Gate: "never"}, nil), context.DeadlineExceeded, "an endpoint has a limit of its own")
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	for _, e := range server.Endpoints {
		if e.Name == "hurried" {
			require.EqualValues(t, 1, e.Runs)
			require.EqualValues(t, 1, e.Errors)
			require.GreaterOrEqual(t, e.P99, 10*time.Millisecond)
		}
	}
}
