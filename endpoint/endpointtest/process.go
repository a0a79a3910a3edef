package endpointtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// ownerEnv is the environment variable with the socket of a process that [StartProcess] started.
const ownerEnv = "SHARED_TENSOR_TEST_OWNER"

// RunOwner runs the owner in processes that [StartProcess] starts, and exits them. In the test's process it returns at
// once. Call it first in TestMain:
//
//	func TestMain(m *testing.M) {
//		endpointtest.RunOwner(owner)
//		os.Exit(m.Run())
//	}
//
// owner serves at socket until ctx ends, usually with [endpoint.Server.Serve]. args are those of StartProcess. ctx also
// ends when the test's process exits, so no owner outlives its test.
func RunOwner(owner func(ctx context.Context, socket string, args []string) error) {
	socket := os.Getenv(ownerEnv)
	if socket == "" {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the test's process closes the pipe or exits
		cancel()
	}()
	if err := owner(ctx, socket, os.Args[1:]); err != nil && !errors.Is(err, endpoint.ErrServerClosed) && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Process is an owner in its own process, for tests of a client whose owner crashes or restarts. Its methods are for
// the goroutine of the test.
type Process struct {
	// Socket is the path of the owner's socket. It stays the same after Restart.
	Socket string

	t      testing.TB
	args   []string
	cmd    *exec.Cmd // nil if the process is not running
	stdin  io.Closer
	stderr bytes.Buffer // read after the process has exited
	exited chan struct{}
}

// StartProcess starts an owner in a new process, which runs the test's program with [RunOwner], and waits until it
// accepts clients. A failure ends the test. The test's cleanup ends the process, and every keeper whose socket is in the
// folder of [Process].Socket.
func StartProcess(t testing.TB, args ...string) *Process {
	t.Helper()
	dir, err := os.MkdirTemp("", "endpointtest") // short enough for a socket path
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{Socket: filepath.Join(dir, "owner.sock"), t: t, args: args}
	t.Cleanup(func() {
		p.stop(func() { _ = p.stdin.Close() })
		endListeners(dir)
		_ = os.RemoveAll(dir) // best effort
	})
	p.start()
	return p
}

// PID returns the id of the process, or 0 if it is not running.
func (p *Process) PID() int {
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Kill kills the process (SIGKILL on Unix) and waits until it has exited, as in a crash. The socket file stays.
func (p *Process) Kill() {
	p.stop(func() { _ = p.cmd.Process.Kill() })
}

// Restart starts the owner again on the same socket with the same arguments, and waits until it accepts clients. It
// kills a running process first.
func (p *Process) Restart() {
	p.t.Helper()
	p.Kill()
	p.start()
}

// start starts the process and waits until a client can connect.
func (p *Process) start() {
	p.t.Helper()
	program, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	p.stderr.Reset()
	cmd := exec.Command(program, p.args...)
	cmd.Env = append(os.Environ(), ownerEnv+"="+p.Socket)
	cmd.Stderr = &p.stderr
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // a killed process has an error
		cancel()
		close(exited)
	}()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: p.Socket, Wait: true})
	if err != nil {
		p.Kill()
		p.t.Fatalf("the owner does not serve, did TestMain call RunOwner? %v\n%s", err, &p.stderr)
	}
	_ = c.Close() // it was a probe
}

// stop ends the process with end and waits until it has exited.
func (p *Process) stop(end func()) {
	if p.cmd == nil {
		return
	}
	end()
	<-p.exited
	_ = p.stdin.Close() // the process no longer needs it
	p.cmd = nil
}

// Leaks checks that a test leaves no descriptors, mappings of shared memory or goroutines in this process, such as
// those of handles and tensors that were not closed. Call it first in a test that is not parallel. What is left after
// all cleanups fails the test and is listed. Entries that contain one of the ignore strings are not counted.
// Descriptors and mappings are counted on Linux, goroutines everywhere.
func Leaks(t testing.TB, ignore ...string) {
	t.Helper()
	drivertest.Leaks(t, ignore...)
}
