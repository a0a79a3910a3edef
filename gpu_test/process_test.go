//go:build linux

package gpu_test

import (
	"errors"
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

// patience bounds what tests wait for. It is not what they measure.
const patience = time.Minute

// execVariable is what has to be put before a program of these tests, such as an emulator.
const execVariable = "SHAREDTENSOR_TEST_EXEC"

// process is an agent as its test sees it.
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

// socketPair returns one end as a connection and the other as a file to inherit.
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

// kill ends the process as a crash would and waits until it is gone. A second time does nothing.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Signal(syscall.SIGKILL)
		p.cmd.Wait()
		p.conn.Close()
	}
}

// end lets the process end by itself.
func (p *process) end() {
	p.tb.Helper()
	require.NoError(p.tb, p.conn.Close())
	require.NoError(p.tb, p.cmd.Wait())
}

// exchange sends a request with a descriptor, which it borrows, or nil; the one that it returns, or nil, is the
// caller's.
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
		p.cmd.Process.Signal(syscall.SIGQUIT) // its stacks say where it hangs
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

// ask is exchange without descriptors; the answer may be an error.
func (p *process) ask(q request) response {
	p.tb.Helper()
	r, f := p.exchange(q, nil)
	require.Nil(p.tb, f)
	return r
}

// must is ask for what has to work.
func (p *process) must(q request) response {
	p.tb.Helper()
	r := p.ask(q)
	require.Empty(p.tb, r.Error, q.Do)
	return r
}

// says is what a fact says of an answer.
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

// owner starts an agent that has memory with a pattern under the key m.
func owner(tb testing.TB, kind driver.HandleKind, bytes int64, seed byte, configure ...func(*exec.Cmd)) *process {
	tb.Helper()
	p := open(tb, kind, configure...)
	p.must(request{Do: "alloc", Key: "m", Bytes: bytes, Seed: seed})
	return p
}

// export returns a handle of an agent's memory; it is closed at the end of the test.
func (p *process) export(key string) driver.Handle {
	p.tb.Helper()
	r, f := p.exchange(request{Do: "export", Key: key}, nil)
	require.Empty(p.tb, r.Error, "export")
	h := unpackHandle(request{Kind: r.Kind, Bytes: r.Bytes, Offset: r.Offset, Device: r.Device, Blob: r.Blob}, f)
	p.tb.Cleanup(func() { h.Close() })
	return h
}

// give makes an agent import a handle, which it borrows, under a key.
func (p *process) give(key string, h driver.Handle, writable bool) response {
	p.tb.Helper()
	r, _ := p.exchange(handleRequest("import", key, h, writable), h.File)
	return r
}

func handleRequest(do, key string, h driver.Handle, writable bool) request {
	return request{Do: do, Key: key, Kind: string(h.Kind), Bytes: h.Bytes, Offset: h.Offset, Device: h.Device[:], Blob: h.Blob, Writable: writable}
}
