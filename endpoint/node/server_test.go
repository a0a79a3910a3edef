package node_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// NewServer fails if the socket cannot be bound.
func TestServerServeError(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "a", "b", "s.sock")
	for name, open := range map[string]func(c *fixture.Child, socket string) error{
		"a server": func(c *fixture.Child, socket string) error {
			return fixture.Attempt(c, fixture.ServeOp, fixture.Service{Socket: socket})
		},
		"a node": func(c *fixture.Child, socket string) error {
			return fixture.Attempt(c, openNodeOp, nodeOptions{Mode: "server", Socket: socket})
		},
	} {
		o := fixture.Start(t)
		require.ErrorIs(t, open(o, missing), os.ErrNotExist, name)
		socket := proctest.SocketPath(t)
		require.NoError(t, open(o, socket), "%s is there where it can be", name)
		require.ErrorIs(t, open(fixture.Start(t), socket), endpoint.ErrInUse, name)
	}
}

// A client calls before the owner has registered endpoints.
func TestNodeReadyAfterRegistrations(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	o, _ := in(t, nodeOptions{Mode: "server", Socket: socket})
	c := fixture.Start(t)
	type place struct {
		pid int32
		err error
	}
	early := make(chan place, 1)
	go func() {
		var ran place
		if ran.err = fixture.Attempt(c, openNodeOp, nodeOptions{Mode: "client", Socket: socket}); ran.err == nil {
			ran.err = fixture.Attempt(c, shareOp, fixture.None{})
		}
		if ran.err == nil {
			ran.pid, ran.err = whereOp.Ask(c.Process, fixture.None{})
		}
		early <- ran
	}()
	require.Equal(t, readiness{Running: true}, readinessOf(o), "it is running and not ready")
	share(o)
	select {
	case ran := <-early:
		require.Fail(t, "the client did not wait", "%+v", ran)
	default:
	}
	ready(o)
	ready(o)
	ran := <-early
	require.NoError(t, ran.err, "who came before waited, and found all endpoints")
	require.Equal(t, o.PID(), ran.pid)
	require.Equal(t, readiness{Running: true, Ready: true, Registered: 4}, readinessOf(o))
}

// An owner with two task workers runs trees of tasks for three processes at once.
func TestTaskCallsTask(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	o, _ := serving(t, nodeOptions{Mode: "server", Socket: socket})
	callers := []*fixture.Child{o}
	for range 2 {
		c, _ := in(t, nodeOptions{Mode: "client", Socket: socket})
		share(c)
		callers = append(callers, c)
	}
	for _, overSocket := range []bool{false, true} {
		type tree struct {
			tasks int
			err   error
		}
		trees := make(chan tree, len(callers))
		for _, c := range callers {
			go func() {
				n, err := nestOp.Ask(c.Process, overSocket)
				trees <- tree{n, err}
			}()
		}
		for range callers {
			got := <-trees
			require.NoError(t, got.err)
			require.Equal(t, 10, got.tasks)
		}
	}
}
