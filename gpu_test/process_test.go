//go:build linux

package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// patience is the timeout of waits in tests. It does not limit measurements.
const patience = time.Minute

// execVariable holds a command that is put before each program that the tests start, such as an emulator.
const execVariable = "SHAREDTENSOR_TEST_EXEC"

// process is the test's side of an agent.
type process struct {
	tb   testing.TB
	cmd  *exec.Cmd
	conn *wire.Conn
	id   uint64
}

// start starts an agent, which ends with the test at the latest. configure may change the command.
func start(tb testing.TB, configure ...func(*exec.Cmd)) *process {
	tb.Helper()
	p, err := tryStart(tb, configure...)
	require.NoError(tb, err)
	return p
}

func tryStart(tb testing.TB, configure ...func(*exec.Cmd)) (*process, error) {
	tb.Helper()
	exe, err := os.Executable()
	require.NoError(tb, err)
	ours, theirs := socketPair(tb)
	defer theirs.Close()
	words := append(strings.Fields(os.Getenv(execVariable)), exe, "-test.run=^$")
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), agentVariable+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	for _, c := range configure {
		c(cmd)
	}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, err
	}
	p := &process{tb: tb, cmd: cmd, conn: ours}
	tb.Cleanup(p.kill)
	return p, nil
}

// socketPair returns one end as a connection and the other as a file for a child process.
func socketPair(tb testing.TB) (*wire.Conn, *os.File) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(tb, err)
	f := os.NewFile(uintptr(fds[0]), "socket")
	c, err := net.FileConn(f)
	f.Close()
	require.NoError(tb, err)
	conn, err := wire.NewConn(c.(*net.UnixConn), wire.Limits{})
	require.NoError(tb, err)
	return conn, os.NewFile(uintptr(fds[1]), "socket")
}

// kill kills the process with SIGKILL and waits until it has exited. Further calls do nothing.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Signal(syscall.SIGKILL)
		p.cmd.Wait()
		p.conn.Close()
	}
}

// end closes the connection and waits until the process has exited.
func (p *process) end() {
	p.tb.Helper()
	require.NoError(p.tb, p.conn.Close())
	require.NoError(p.tb, p.cmd.Wait())
}

// exchange sends a request and returns the response. It borrows in, which may be nil. The caller owns the returned
// file, which may be nil.
func (p *process) exchange(q request, in *os.File) (response, *os.File) {
	p.tb.Helper()
	body, err := message.Marshal(q)
	require.NoError(p.tb, err)
	var files []*os.File
	if in != nil {
		files = append(files, in)
	}
	p.id++
	require.NoError(p.tb, p.conn.SetReadDeadline(time.Now().Add(patience)))
	require.NoError(p.tb, p.conn.Send(wire.KindRequest, p.id, body, files...), "%s: the process has ended", q.Do)
	frame, err := p.conn.Receive()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.cmd.Process.Signal(syscall.SIGQUIT) // prints its stacks, which show where it hangs
		p.cmd.Wait()
	}
	require.NoError(p.tb, err, "%s: the process has ended", q.Do)
	defer frame.Files.Close()
	var r response
	require.NoError(p.tb, message.Unmarshal(frame.Body, &r))
	if !r.HasFile {
		return r, nil
	}
	require.Equal(p.tb, 1, frame.Files.Len())
	return r, frame.Files.Take(0)
}

// answers asks the process for its number. An error means that the process has ended.
func (p *process) answers() error {
	p.tb.Helper()
	body, err := message.Marshal(request{Do: "pid"})
	require.NoError(p.tb, err)
	p.id++
	require.NoError(p.tb, p.conn.SetReadDeadline(time.Now().Add(patience)))
	if err := p.conn.Send(wire.KindRequest, p.id, body); err != nil {
		return err
	}
	_, err = p.conn.Receive()
	return err
}

// ask is exchange without descriptors. The response may hold an error.
func (p *process) ask(q request) response {
	p.tb.Helper()
	r, f := p.exchange(q, nil)
	require.Nil(p.tb, f)
	return r
}

// must is ask, and fails the test if the response holds an error.
func (p *process) must(q request) response {
	p.tb.Helper()
	r := p.ask(q)
	require.Empty(p.tb, r.Error, q.Do)
	return r
}

// says formats the response for a fact.
func (r response) says() string {
	if r.Error == "" {
		return "works"
	}
	return r.Answer
}

// open starts an agent with an open device that shares by kind.
func open(tb testing.TB, kind driver.HandleKind, configure ...func(*exec.Cmd)) *process {
	tb.Helper()
	p := start(tb, configure...)
	p.must(request{Do: "open", Kind: string(kind)})
	return p
}

// owner starts an agent with memory of the given size that holds the pattern of seed. Its key is "m".
func owner(tb testing.TB, kind driver.HandleKind, bytes int64, seed byte, configure ...func(*exec.Cmd)) *process {
	tb.Helper()
	p := open(tb, kind, configure...)
	p.must(request{Do: "alloc", Key: "m", Bytes: bytes, Seed: seed})
	return p
}

// export returns a handle to an agent's memory. It is closed when the test ends.
func (p *process) export(key string) driver.Handle {
	p.tb.Helper()
	r, f := p.exchange(request{Do: "export", Key: key}, nil)
	require.Empty(p.tb, r.Error, "export")
	h := unpackHandle(request{Kind: r.Kind, Bytes: r.Bytes, Offset: r.Offset, Device: r.Device, Blob: r.Blob}, f)
	p.tb.Cleanup(func() { h.Close() })
	return h
}

// give imports a handle in an agent, under the given key. It borrows the handle.
func (p *process) give(key string, h driver.Handle, writable bool) response {
	p.tb.Helper()
	r, _ := p.exchange(handleRequest("import", key, h, writable), h.File)
	return r
}

func handleRequest(do, key string, h driver.Handle, writable bool) request {
	return request{Do: do, Key: key, Kind: string(h.Kind), Bytes: h.Bytes, Offset: h.Offset, Device: h.Device[:], Blob: h.Blob, Writable: writable}
}

// python runs a program with python3, or the interpreter that PYTHON names, and returns its output.
func python(tb testing.TB, program string, env ...string) (string, error) {
	tb.Helper()
	name := os.Getenv("PYTHON")
	if name == "" {
		name = "python3"
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, "-c", program)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if said := lastLine(stderr.String()); said != "" {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(said))
		}
		return "", err
	}
	return stdout.String(), nil
}
