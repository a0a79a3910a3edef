//go:build unix

package proctest_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// limit is the maximum time that tests wait for a process.
const limit = time.Minute

type counter struct{ n int }

var (
	errNegative = errors.New("negative")

	counting = proctest.NewRole("counting", map[string]error{"negative": errNegative, "eof": io.EOF},
		func() (*counter, error) { return &counter{}, nil })
	add = proctest.NewOp(counting, "add", func(c *counter, n int) (int, error) {
		if n < 0 {
			return c.n, fmt.Errorf("add %d: %w", n, errNegative)
		}
		c.n += n
		return c.n, nil
	})
	variable = proctest.NewOp(counting, "variable", func(_ *counter, name string) (string, error) { return os.Getenv(name), nil })
)

func TestOps(t *testing.T) {
	one, two := counting.Start(t), counting.Start(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "COLOUR=blue") })
	require.NotEqual(t, one.PID(), two.PID())
	require.Equal(t, 3, add.Must(one, 3))
	require.Equal(t, 5, add.Must(one, 2), "the state is kept")
	require.Equal(t, 1, add.Must(two, 1), "each process has its own")
	require.Equal(t, "blue", variable.Must(two, "COLOUR"))

	n, err := add.Ask(one, -1)
	require.ErrorIs(t, err, errNegative)
	require.NotErrorIs(t, err, io.EOF)
	require.EqualError(t, err, "add -1: negative")
	require.Equal(t, 5, n, "a result with an error arrives")
}

func TestSignals(t *testing.T) {
	p := counting.Start(t)
	add.Must(p, 1)
	p.Stop()
	answered := make(chan int, 1)
	go func() { answered <- add.Must(p, 1) }()
	select {
	case <-answered:
		require.Fail(t, "a stopped process answered")
	case <-time.After(50 * time.Millisecond):
	}
	p.Continue()
	select {
	case n := <-answered:
		require.Equal(t, 2, n)
	case <-time.After(limit):
		require.Fail(t, "the process did not continue")
	}
	p.Kill()
	require.Equal(t, syscall.SIGKILL, p.Wait().Sys().(syscall.WaitStatus).Signal())
	p.Kill()
	require.True(t, counting.Start(t).Quit().Success(), "a child exits at the end of its input")
}

func TestSocketPath(t *testing.T) {
	one, two := proctest.SocketPath(t), proctest.SocketPath(t)
	require.NotEqual(t, one, two)
	require.Less(t, len(one), 100, "the kernel's limit is 107 bytes")
	info, err := os.Stat(one[:strings.LastIndex(one, "/")])
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestCounts(t *testing.T) {
	before := proctest.Count()
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	require.False(t, proctest.Count().Within(before))
	require.NoError(t, f.Close())
	proctest.Eventually(t, limit, "it is closed", func() bool { return proctest.Count().Within(before) })
}
