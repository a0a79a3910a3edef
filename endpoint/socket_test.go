package endpoint_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

func TestSocketPath(t *testing.T) {
	t.Setenv("SHARED_TENSOR_BASE_PATH", "/run/x/base")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	path, err := endpoint.SocketPath("", 2)
	require.NoError(t, err)
	require.Equal(t, "/run/x/base-2.sock", path)
	path, err = endpoint.SocketPath("/explicit", 0)
	require.NoError(t, err)
	require.Equal(t, "/explicit-0.sock", path, "an explicit base goes before the environment")

	t.Setenv("SHARED_TENSOR_BASE_PATH", "")
	path, err = endpoint.SocketPath("", 0)
	require.NoError(t, err)
	require.Equal(t, "/run/user/7/shared-tensor-0.sock", path)

	t.Setenv("XDG_RUNTIME_DIR", "")
	path, err = endpoint.SocketPath("", 0)
	require.NoError(t, err)
	require.Regexp(t, `/shared-tensor-\d+/shared-tensor-0\.sock$`, path)

	for _, base := range []string{"@abstract", "/" + strings.Repeat("x", 120)} {
		_, err = endpoint.SocketPath(base, 0)
		require.ErrorIs(t, err, endpoint.ErrInvalid)
	}
	_, err = endpoint.SocketPath("", -1)
	require.ErrorIs(t, err, endpoint.ErrInvalid)
}

func TestSocketPermissions(t *testing.T) {
	t.Parallel()
	_, socket := owner(t)
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestSocketSecondOwner(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "m", Seed: 1})
	c := client(t, socket)
	second := start(t)
	err := second.serveError(socket)
	require.ErrorIs(t, err, endpoint.ErrInUse)
	require.ErrorContains(t, err, "process ", "the error says who serves")
	c.ping()
	client(t, socket).acquire(acquisition{Name: "m", Key: "h"})

	// Of many that start at once, one serves.
	o.shutdown(waitLimit)
	results := make(chan error)
	for range 6 {
		p := start(t)
		go func() { results <- attempt(p, serveOp, service{Socket: socket}) }()
	}
	served := 0
	for range 6 {
		if err := <-results; err == nil {
			served++
		} else {
			require.ErrorIs(t, err, endpoint.ErrInUse)
		}
	}
	require.Equal(t, 1, served)
}

func TestSocketListenerWithoutLock(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	_, err = endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	require.FileExists(t, socket)
}

func TestSocketStale(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.Kill()
	require.FileExists(t, socket)
	o2 := start(t)
	o2.serve(socket)
	client(t, socket).ping()
	o2.shutdown(waitLimit)
	require.NoFileExists(t, socket)
}

func TestSocketRemovesItsOwn(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	require.NoError(t, os.Remove(socket))
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	o.shutdown(waitLimit)
	require.FileExists(t, socket)
}

func TestSocketRefused(t *testing.T) {
	drivertest.Leaks(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file.sock")
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	open := filepath.Join(dir, "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	for _, c := range []struct {
		name, path string
		is         error
		says       string
	}{
		{"a file", file, endpoint.ErrInvalid, "not a socket"},
		{"a directory that others may write", filepath.Join(open, "s.sock"), endpoint.ErrPermission, "chmod go-w"},
		{"no directory", filepath.Join(dir, "a", "b", "s.sock"), os.ErrNotExist, "socket directory"},
		{"an abstract name", "@x", endpoint.ErrInvalid, "abstract"},
		{"a long path", filepath.Join(dir, strings.Repeat("x", 120)), endpoint.ErrInvalid, "at most 107"},
	} {
		_, err := endpoint.NewServer(endpoint.ServerOptions{Socket: c.path})
		require.ErrorIs(t, err, c.is, c.name)
		require.ErrorContains(t, err, c.says, c.name)
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "mine", string(content))
}

func TestSocketDirectory(t *testing.T) {
	drivertest.Leaks(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("SHARED_TENSOR_BASE_PATH", "")
	try := func(socket string) error {
		s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
		if err == nil {
			require.NoError(t, s.Close())
		}
		return err
	}
	require.NoError(t, try(""))
	path, err := endpoint.SocketPath("", 0)
	require.NoError(t, err)
	private := filepath.Dir(path)
	info, err := os.Lstat(private)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	require.NoError(t, os.Chmod(private, 0o755))
	require.ErrorIs(t, try(""), endpoint.ErrPermission, "it is ours alone")
	require.ErrorContains(t, try(""), "chmod 700")
	chosen := filepath.Join(temp, "chosen")
	require.NoError(t, os.Mkdir(chosen, 0o755))
	require.NoError(t, try(filepath.Join(chosen, "s.sock")), "others may see a socket where the user wants it")

	// A link may point elsewhere at any time.
	link := filepath.Join(temp, "link")
	require.NoError(t, os.Symlink(chosen, link))
	require.NoError(t, try(filepath.Join(link, "s.sock")))
	require.NoError(t, os.RemoveAll(private))
	require.NoError(t, os.Mkdir(filepath.Join(temp, "own"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(temp, "own"), private))
	require.NoError(t, try(""))
	needsRoot(t)
	for _, l := range []string{link, private} {
		require.NoError(t, os.Lchown(l, 65534, 65534))
		err := try(filepath.Join(l, "s.sock"))
		require.ErrorIs(t, err, endpoint.ErrPermission)
		require.ErrorContains(t, err, "uid 65534")
	}
}

func TestSocketOtherUser(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	hostOnly(t, "the other user cannot read the stand-in for the driver")
	o, socket := owner(t)
	nobody := asUser(t, 65534)
	stranger := start(t, nobody)
	require.ErrorIs(t, stranger.dialError(dialing{Socket: socket}), endpoint.ErrPermission)

	// If the directory is open to others, both sides still verify the peer's uid.
	require.NoError(t, os.Chmod(filepath.Dir(socket), 0o755))
	require.NoError(t, os.Chmod(socket, 0o666))
	require.ErrorIs(t, stranger.dialError(dialing{Socket: socket}), endpoint.ErrPermission)
	squat := filepath.Join(copyDir(t), "squat.sock")
	stranger.serve(squat)
	err := start(t).dialError(dialing{Socket: squat})
	require.ErrorIs(t, err, endpoint.ErrPermission)
	require.ErrorContains(t, err, "uid 65534")
	o.models()
}

// Processes of two users, of which the owner and the client of one allow each other.
func TestSocketAllowUIDs(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	hostOnly(t, "the other user cannot read the stand-in for the driver")
	const guest, stranger = 65534, 65533
	socket := proctest.SocketPath(t)
	o := start(t)
	o.serveWith(service{Socket: socket, UIDs: []uint32{guest}})
	o.publish(model{Name: "m", Seed: 1})
	require.NoError(t, os.Chmod(filepath.Dir(socket), 0o711)) // the user opens the directory; the server sets the socket's mode
	as := func(uid uint32) *child { return start(t, asUser(t, uid)) }
	g := as(guest)
	require.ErrorIs(t, g.dialError(dialing{Socket: socket}), endpoint.ErrPermission, "it has to allow the owner too")
	g.dialWith(dialing{Socket: socket, UIDs: []uint32{0}})
	g.acquire(acquisition{Name: "m", Key: "h"})
	g.check("h", model{Seed: 1})
	g.publish(model{Name: "n", Seed: 2})
	holders := o.models()[0].Versions[0].Holders
	require.Len(t, holders, 1)
	require.EqualValues(t, guest, holders[0].UID)
	err := as(stranger).dialError(dialing{Socket: socket, UIDs: []uint32{0}})
	require.ErrorIs(t, err, endpoint.ErrPermission)
	require.ErrorContains(t, err, "uid 65533")
}

// needsRoot skips a test that acts as other users, which only root can do.
func needsRoot(t *testing.T) {
	t.Helper()
	drivertest.Needs(t, "root", os.Getuid() == 0, "only root can act as another user")
}

// asUser makes a child a process of another user.
func asUser(t *testing.T, uid uint32) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Path = copyForAll(t, cmd.Path)
	}
}

// copyForAll copies a program to a place where every user can run it.
func copyForAll(t *testing.T, exe string) string {
	t.Helper()
	content, err := os.ReadFile(exe)
	require.NoError(t, err)
	path := filepath.Join(copyDir(t), "child")
	syscall.ForkLock.RLock() // a child of another test that inherits the open file would prevent running it
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, content, 0o755))
	return path
}

// copyDir returns a directory of the user nobody that every user can enter.
func copyDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "st")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Chown(dir, 65534, 65534))
	return dir
}

// An owner that shuts down in order leaves no lock file, and two owners never hold the lock at once.
func TestSocketLockFile(t *testing.T) {
	t.Parallel()
	dev := testDevice(t)
	socket := proctest.SocketPath(t)
	var serving, most atomic.Int32
	var owners sync.WaitGroup
	for range 8 {
		owners.Go(func() {
			for range 40 {
				s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Logger: discard()})
				if err != nil {
					assert.ErrorIs(t, err, endpoint.ErrInUse)
					continue
				}
				most.Store(max(most.Load(), serving.Add(1)))
				serving.Add(-1)
				assert.NoError(t, s.Close())
			}
		})
	}
	owners.Wait()
	require.EqualValues(t, 1, most.Load())
	require.NoFileExists(t, socket)
	require.NoFileExists(t, socket+".lock")
}
