package transport

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// socketPath returns the path of a socket in a new directory.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st") // short enough for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// listen listens until the end of the test.
func listen(t *testing.T, path string) *Socket {
	t.Helper()
	s, err := Listen(path, Permissions{}, 10*time.Second)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// accepts reports whether a client that dials the path reaches s.
func accepts(t *testing.T, s *Socket, path string) bool {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	defer c.Close()
	there, err := s.Accepting().Accept()
	require.NoError(t, err)
	return there.Close() == nil
}

// One owner listens on a path. Its socket is private, and Close removes its files.
func TestSocketHasOneOwner(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	s := listen(t, path)
	require.True(t, accepts(t, s, path))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())
	require.Equal(t, FileOf(info), s.ID())
	_, err = Listen(path, Permissions{}, 0)
	require.ErrorIs(t, err, status.ErrInUse)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))
	require.True(t, accepts(t, s, path), "the refused owner left the socket alone")
	require.NoError(t, s.Close())
	require.NoFileExists(t, path)
	require.NoFileExists(t, path+".lock")
	listen(t, path)
}

// The socket file of a dead owner is replaced. Another file is not.
func TestSocketReplacesStaleFile(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	s := listen(t, path)
	require.True(t, accepts(t, s, path))
	require.NoError(t, s.Close())

	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	_, err = Listen(path, Permissions{}, 0)
	require.Error(t, err)
	require.FileExists(t, path)
	require.NoFileExists(t, path+".lock")
}

// A listener without the lock is another owner's, or still open in a process that a killed owner was starting.
func TestListenWaitsForAListener(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	for _, wait := range []time.Duration{0, 30 * time.Millisecond} {
		_, err = Listen(path, Permissions{}, wait)
		require.ErrorIs(t, err, status.ErrInUse)
		require.NoFileExists(t, path+".lock")
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = l.Close() })
	require.True(t, accepts(t, listen(t, path), path))
}

// A removed or replaced socket is lost, and Rebind makes it reachable again. Close leaves the file of another owner.
func TestSocketRebinds(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	s := listen(t, path)
	require.False(t, s.Lost())
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Remove(path+".lock"))
	require.True(t, s.Lost())
	before := s.Accepting()
	require.NoError(t, s.Rebind())
	require.False(t, s.Lost())
	_, err := before.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.True(t, accepts(t, s, path))
	_, err = Listen(path, Permissions{}, 0)
	require.ErrorIs(t, err, status.ErrInUse, "the lock file is locked again")

	require.NoError(t, os.Remove(path))
	other, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer other.Close()
	require.True(t, s.Lost())
	require.NoError(t, s.Close())
	_, err = os.Lstat(path)
	require.NoError(t, err, "the file of another owner stays")
}

// A successor receives the listener and the lock. Clients that dial in between wait in the queue.
func TestSocketHandedOver(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	old := listen(t, path)
	l, lock, bound, err := old.HandOver()
	require.NoError(t, err)
	require.True(t, bound)
	next, err := Inherit(path, Permissions{}, l, lock, bound)
	require.NoError(t, err)
	defer next.Close()
	waiting, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer waiting.Close()
	require.NoError(t, next.Own())
	old.Leave()
	require.True(t, old.Left())
	require.False(t, old.Lost())
	require.NoError(t, old.Close())
	there, err := next.Accepting().Accept()
	require.NoError(t, err)
	require.NoError(t, there.Close())
	_, err = waiting.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = Listen(path, Permissions{}, 0)
	require.ErrorIs(t, err, status.ErrInUse)
	require.NoError(t, next.Close())
	require.NoFileExists(t, path)
	_, _, _, err = next.HandOver()
	require.ErrorIs(t, err, net.ErrClosed)
}

// Permit changes the mode of the socket. A path that does not fit an address is refused.
func TestSocketPermissions(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	s := listen(t, path)
	require.NoError(t, s.Permit(Permissions{Mode: 0o660, Grouped: true, Group: uint32(os.Getgid())}))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o660, info.Mode())
	require.NoError(t, s.Close())
	require.NoError(t, s.Permit(Permissions{}), "after Close it has no effect")
	_, err = Listen(filepath.Join(filepath.Dir(path), string(make([]byte, 200))), Permissions{}, 0)
	require.Error(t, err)
}
