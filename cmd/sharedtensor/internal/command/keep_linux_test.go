package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
)

// killKeeper ends the keeper of the place's owner with the test.
func (p *place) killKeeper() {
	p.t.Cleanup(func() {
		store, err := keeper.Connect(keeper.Options{Socket: p.socket() + ".keep", Command: []string{"false"}})
		if err == nil {
			_ = syscall.Kill(store.PID(), syscall.SIGKILL)
			store.Close()
		}
	})
}

func TestServeKeep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.killKeeper()
	owner := testServeKeep(t, p, "--keep")

	// An owner that stops names its keeper, which frees the memory when it ends.
	owner.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, owner.exit(), owner.stderr.String())
	named := regexp.MustCompile(`keeper=(\d+) models=2 `).FindStringSubmatch(owner.stderr.String())
	require.Len(t, named, 2, owner.stderr.String())
	pid, err := strconv.Atoi(named[1])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, "the keeper has ended", func() bool {
		_, err := os.Stat(p.socket() + ".keep")
		return errors.Is(err, os.ErrNotExist)
	})
	owner = p.serve("--keep")
	require.NotContains(t, owner.stderr.String(), "adopted")
	require.NotContains(t, owner.stderr.String(), "lost", "it was not killed")

	refused := p.start(p.command("serve", "--keep=tape"))
	require.Equal(t, cli.ExitUsage, refused.exit())
	require.Contains(t, refused.stderr.String(), "use process, systemd or dir:PATH")
}

// A directory replaces the keeper.
func TestServeKeepDirectory(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	testServeKeep(t, p, "--keep", "dir:"+filepath.Join(p.dir, "kept"))
	require.NoFileExists(t, p.socket()+".keep")
}

// testServeKeep restarts owners of two models, and returns the last one.
func testServeKeep(t *testing.T, p *place, keep ...string) *process {
	path, other := p.model("m.safetensors", 1), p.model("other.safetensors", 2)
	serve := func() *process { return p.serve(append(keep, "m="+path, "other="+other)...) }
	owner := serve()
	h := attach(t, p.socket(), "m")
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGQUIT} {
		owner.signal(how)
		if code := owner.exit(); how == syscall.SIGTERM {
			require.Equal(t, cli.ExitOK, code, owner.stderr.String())
		}
		owner = serve()
		eventually(t, "both are adopted", func() bool { return strings.Count(owner.stderr.String(), "msg=adopted") == 2 })
		require.NotContains(t, owner.stderr.String(), "loaded", "the files have not changed")
		eventually(t, "the lease is back", h.Leased)
		again := attach(t, p.socket(), "m")
		require.Equal(t, uint64(1), again.Version())
		require.Equal(t, digests(t, path), handleDigests(t, again))
	}

	require.NoError(t, os.Rename(p.model("new.safetensors", 3), path))
	owner.signal(syscall.SIGKILL)
	owner.exit()
	owner = serve()
	eventually(t, "m is loaded", func() bool { return strings.Contains(owner.stderr.String(), "loaded m:") })
	require.NotContains(t, owner.stderr.String(), "loaded other:")
	again := attach(t, p.socket(), "m")
	require.Equal(t, uint64(2), again.Version())
	require.Equal(t, digests(t, path), handleDigests(t, again))

	// A version that replaces that of the file survives its owner, and the file is not loaded again.
	p.must("publish", "m="+p.model("newer.safetensors", 4))
	owner.signal(syscall.SIGKILL)
	owner.exit()
	owner = serve()
	eventually(t, "the version is adopted", func() bool { return strings.Contains(owner.stderr.String(), "adopted name=m version=3") })
	require.NotContains(t, owner.stderr.String(), "loaded", "the files have not changed")
	again = attach(t, p.socket(), "m")
	require.Equal(t, uint64(3), again.Version())
	require.Equal(t, digests(t, filepath.Join(p.dir, "newer.safetensors")), handleDigests(t, again))

	owner.signal(syscall.SIGHUP) // loads everything again
	eventually(t, "both are loaded again", func() bool {
		return strings.Contains(owner.stderr.String(), `changed="m version 4, other version 2"`)
	})
	return owner
}

// serviceManager is the side of the service manager: it stores descriptors and passes them to the next process.
type serviceManager struct {
	t      testing.TB
	socket *net.UnixConn
	path   string

	mu     sync.Mutex
	stored map[string]*os.File
}

func newServiceManager(t testing.TB, path string) *serviceManager {
	m := &serviceManager{t: t, socket: listenNotify(t, path), path: path, stored: map[string]*os.File{}}
	go m.receive()
	return m
}

// receive handles messages until the socket is closed, as sd_notify(3) describes.
func (m *serviceManager) receive() {
	state, rights := make([]byte, 4096), make([]byte, 256)
	for {
		n, r, _, _, err := m.socket.ReadMsgUnix(state, rights)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var files []*os.File
		messages, _ := unix.ParseSocketControlMessage(rights[:r])
		for _, message := range messages {
			fds, _ := unix.ParseUnixRights(&message)
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "stored"))
			}
		}
		m.apply(string(state[:n]), files)
	}
}

func (m *serviceManager) apply(state string, files []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, name, _ := strings.Cut(state, "FDNAME=")
	switch {
	case strings.HasPrefix(state, "FDSTORE=1"):
		m.stored[name] = files[0]
		return
	case strings.HasPrefix(state, "FDSTOREREMOVE=1"):
		if f := m.stored[name]; f != nil {
			f.Close()
			delete(m.stored, name)
		}
	}
	for _, f := range files { // a barrier
		f.Close()
	}
}

// serve starts an owner with the stored descriptors, and with the listening socket among them.
func (m *serviceManager) serve(p *place, listener *os.File, args ...string) *process {
	names, files := []string{"owner.socket"}, []*os.File{listener}
	m.mu.Lock()
	for name, f := range m.stored { // duplicates: the manager may close what the last owner removes
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(m.t, err)
		d := os.NewFile(uintptr(fd), name)
		defer d.Close()
		names, files = append(names, name), append(files, d)
	}
	m.mu.Unlock()
	c := p.command()
	script := fmt.Sprintf(`export LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=%s; exec "$@"`, len(files), strings.Join(names, ":"))
	c.Path = "/bin/sh"
	c.Args = append([]string{"sh", "-c", script, "sh", program, "serve"}, args...)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+m.path)
	c.ExtraFiles = files
	s := p.start(c)
	require.Regexp(m.t, `^serving `, s.line())
	return s
}

// The service manager holds the same descriptors for a successor, and passes them to the process after it.
func TestUpgradeSystemd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path, socket := p.model("m.safetensors", 1), p.file("activated.sock")
	m := newServiceManager(t, p.file("notify"))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	f, err := l.File()
	require.NoError(t, err)
	defer f.Close()
	owner := m.serve(p, f, "--keep=systemd", "m="+path)
	h := attach(t, socket, "m")
	p.must("publish", "other="+p.model("other.safetensors", 2), "--socket", socket)
	var got upgraded
	for range 2 {
		require.NoError(t, json.Unmarshal([]byte(p.must("upgrade", "--json", "--socket", socket)), &got))
	}
	t.Cleanup(func() { _ = syscall.Kill(int(got.PID), syscall.SIGKILL) })
	eventually(t, "the service manager stores a journal and two models", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.stored) == 3
	})
	require.NoError(t, syscall.Kill(int(got.PID), syscall.SIGKILL))
	owner.exit() // of both: the successor has its standard streams
	owner = m.serve(p, f, "--keep=systemd", "m="+path)
	require.NotContains(t, owner.stderr.String(), "loaded m:")
	eventually(t, "the lease is back", h.Leased)
	require.Equal(t, digests(t, path), handleDigests(t, attach(t, socket, "m")))
	require.Equal(t, digests(t, p.file("other.safetensors")), handleDigests(t, attach(t, socket, "other")))
}

func TestServeKeepSystemd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	m := newServiceManager(t, p.file("notify"))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.file("activated.sock"), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	f, err := l.File()
	require.NoError(t, err)
	defer f.Close()

	owner := m.serve(p, f, "--keep=systemd", "m="+path)
	require.Contains(t, owner.stderr.String(), "loaded m:")
	h := attach(t, p.file("activated.sock"), "m")
	owner.signal(syscall.SIGKILL)
	owner.exit()
	owner = m.serve(p, f, "--keep=systemd", "m="+path)
	require.NotContains(t, owner.stderr.String(), "loaded m:", "adopted from the service manager")
	eventually(t, "the lease is back", h.Leased)
	again := attach(t, p.file("activated.sock"), "m")
	require.Equal(t, digests(t, path), handleDigests(t, again))
	p.must("withdraw", "m", "--socket", p.file("activated.sock"))
	require.NoError(t, h.Close())
	require.NoError(t, again.Close()) // a withdrawn version is kept for its readers
	eventually(t, "the service manager stores only the journal", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.stored) == 1
	})

	c := p.command("serve", "--keep=systemd")
	outside := p.start(c)
	require.Equal(t, cli.ExitFailure, outside.exit())
	require.Contains(t, outside.stderr.String(), "FileDescriptorStoreMax=")
}
