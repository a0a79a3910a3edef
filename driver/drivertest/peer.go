package drivertest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// ignoreVariable passes the strings of IgnoreLeaks to the peer.
const ignoreVariable = "SHAREDTENSOR_DRIVERTEST_IGNORE"

// memory is driver.Memory without its device, which another process does not have.
type memory interface {
	io.ReaderAt
	io.WriterAt
	Bytes() int64
	Writable() bool
	Export() (driver.Handle, error)
	Close() error
}

// process allocates or imports memory; it is this process or a peer.
type process interface {
	alloc(bytes int64) (memory, error)
	importHandle(h driver.Handle, opts driver.ImportOptions) (memory, error)
}

// local is this process.
type local struct{ device driver.Device }

func (l local) alloc(bytes int64) (memory, error) { return known(l.device.Alloc(bytes)) }

func (l local) importHandle(h driver.Handle, opts driver.ImportOptions) (memory, error) {
	return known(l.device.Import(h, opts))
}

// known converts a nil driver.Memory to a nil memory.
func known(m driver.Memory, err error) (memory, error) {
	if m == nil {
		return nil, err
	}
	return m, err
}

// peer is a second process that runs this test binary.
type peer struct {
	cmd    *exec.Cmd
	socket *socket
	killed bool
	mu     sync.Mutex // one request at a time
}

// startPeer starts a peer that ends with the test. A peer that leaks fails the test.
func startPeer(t *testing.T, o options) *peer {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("a second process is started on Unix only")
	}
	ours, theirs, err := socketPair()
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^$")
	// With the race detector a process sleeps a second before it exits.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	cmd.Env = append(cmd.Env, o.peerEnv...)
	cmd.Env = append(cmd.Env, peerVariable+"="+strconv.Itoa(peerSocket), ignoreVariable+"="+strings.Join(o.ignore, " "))
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		ours.Close()
	}
	require.NoError(t, err)
	p := &peer{cmd: cmd, socket: ours}
	t.Cleanup(func() {
		ours.Close()
		if err := cmd.Wait(); err != nil && !p.killed {
			t.Errorf("the second process: %v", err)
		}
	})
	return p
}

// kill kills the peer and returns when it has ended.
func (p *peer) kill(t *testing.T) {
	t.Helper()
	p.killed = true
	require.NoError(t, p.cmd.Process.Kill())
	_, err := p.cmd.Process.Wait()
	require.NoError(t, err)
}

// call sends one request. It borrows file; the returned one is owned by the caller.
func (p *peer) call(q request, file *os.File) (response, *os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var r response
	if err := p.socket.send(q, file); err != nil {
		return r, nil, fmt.Errorf("%s in the second process (does TestMain call drivertest.Main?): %w", q.Op, err)
	}
	out, err := p.socket.receive(&r)
	if err != nil {
		return r, nil, fmt.Errorf("%s in the second process (does TestMain call drivertest.Main?): %w", q.Op, err)
	}
	if r.Err != nil {
		return r, out, r.Err
	}
	return r, out, nil
}

func (p *peer) info() (driver.Info, error) {
	r, _, err := p.call(request{Op: "info"}, nil)
	return r.Info, err
}

func (p *peer) alloc(bytes int64) (memory, error) {
	return p.made(p.call(request{Op: "alloc", Bytes: bytes}, nil))
}

// forget makes the peer drop memory while a slice or address of it is in use: its own memory, or that of h, which it
// borrows.
func (p *peer) forget(bytes int64, h *driver.Handle, opts driver.ImportOptions) error {
	q := request{Op: "forget", Bytes: bytes, Writable: opts.Writable}
	var file *os.File
	if h != nil {
		q.Handle, file = packHandle(*h)
	}
	_, _, err := p.call(q, file)
	return err
}

func (p *peer) importHandle(h driver.Handle, opts driver.ImportOptions) (memory, error) {
	packed, file := packHandle(h)
	return p.made(p.call(request{Op: "import", Handle: packed, Writable: opts.Writable}, file))
}

func (p *peer) made(r response, _ *os.File, err error) (memory, error) {
	if err != nil {
		return nil, err
	}
	return &peerMemory{peer: p, id: r.Memory, bytes: r.Bytes, writable: r.Writable}, nil
}

// peerMemory is a memory of a peer.
type peerMemory struct {
	peer     *peer
	id       int
	bytes    int64
	writable bool
}

func (m *peerMemory) Bytes() int64   { return m.bytes }
func (m *peerMemory) Writable() bool { return m.writable }

func (m *peerMemory) ReadAt(b []byte, off int64) (int, error) {
	for n := 0; ; {
		r, _, err := m.peer.call(request{Op: "read", Memory: m.id, Offset: off + int64(n), Bytes: int64(len(b) - n)}, nil)
		n += copy(b[n:], r.Data)
		if errors.Is(err, io.EOF) {
			err = io.EOF // io.ReaderAt returns it unwrapped
		}
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

func (m *peerMemory) WriteAt(b []byte, off int64) (int, error) {
	for n := 0; ; {
		piece := b[n:min(len(b), n+pieceBytes)]
		r, _, err := m.peer.call(request{Op: "write", Memory: m.id, Offset: off + int64(n), Data: piece}, nil)
		n += r.N
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

func (m *peerMemory) Export() (driver.Handle, error) {
	r, file, err := m.peer.call(request{Op: "export", Memory: m.id}, nil)
	if err != nil {
		return driver.Handle{}, err
	}
	return unpackHandle(r.Handle, file), nil
}

func (m *peerMemory) Close() error {
	_, _, err := m.peer.call(request{Op: "close", Memory: m.id}, nil)
	return err
}
