//go:build unix

package proctest

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Process is a child process in a role. Only one goroutine at a time may use it, except for its signals.
type Process[S any] struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// Start starts a child, which is killed at the end of the test if it still runs. configure may change its environment,
// user or executable. The child inherits the standard error of the tests.
func (r *Role[S]) Start(t testing.TB, configure ...func(*exec.Cmd)) *Process[S] {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = append(os.Environ(), roleVariable+"="+r.name), os.Stderr
	for _, c := range configure {
		c(cmd)
	}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &Process[S]{t: t, cmd: cmd, in: in, out: json.NewDecoder(out)}
	t.Cleanup(p.Kill)
	return p
}

// send sends a command.
func (p *Process[S]) send(c command) {
	p.t.Helper()
	line, err := json.Marshal(c)
	require.NoError(p.t, err)
	_, err = p.in.Write(append(line, '\n'))
	require.NoError(p.t, err, "%s: the process has ended", c.Op)
}

// receive waits for the answer to a command.
func (p *Process[S]) receive(op string) (a answer) {
	p.t.Helper()
	require.NoError(p.t, p.out.Decode(&a), "%s: the process has ended", op)
	return a
}

// PID is the process's id.
func (p *Process[S]) PID() int32 { return int32(p.cmd.Process.Pid) }

// Signal sends a signal. Best effort: the process may have ended.
func (p *Process[S]) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill kills the process with SIGKILL and waits for its end. A second Kill does nothing.
func (p *Process[S]) Kill() {
	if p.cmd.ProcessState == nil {
		p.Signal(syscall.SIGKILL)
		_ = p.cmd.Wait() // the error only reports the signal
	}
}

// Wait waits until the process has ended and returns its state.
func (p *Process[S]) Wait() *os.ProcessState {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Wait() // the state contains the error
	}
	return p.cmd.ProcessState
}

// Stop stops the process with SIGSTOP, like a debugger, and waits until it has stopped. Its connections stay open.
func (p *Process[S]) Stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		require.NoError(p.t, err)
		require.True(p.t, status.Stopped(), "the process has ended: %v", status)
		return
	}
}

// Continue resumes a stopped process.
func (p *Process[S]) Continue() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// Quit closes the standard input of the process, which makes its role return, and waits for its end.
func (p *Process[S]) Quit() *os.ProcessState {
	p.in.Close()
	return p.Wait()
}
