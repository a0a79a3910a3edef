package wire

import (
	"io"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pipe returns a pair of connections that the test closes.
func pipe(t testing.TB, limits Limits) (a, b *Conn) {
	t.Helper()
	a, b, err := Pipe(limits)
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// rawPair returns a connection and the bare socket of its peer, which can send invalid data.
func rawPair(t testing.TB, limits Limits) (*Conn, *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		require.NoError(t, err)
		f.Close()
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	conn, err := NewConn(ends[0], limits)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn, ends[1]
}

// memfds returns n files, each containing its index as text.
func memfds(t testing.TB, n int) []*os.File {
	t.Helper()
	files := make([]*os.File, n)
	for i := range files {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		files[i] = os.NewFile(uintptr(fd), "test")
		_, err = files[i].WriteString(strconv.Itoa(i))
		require.NoError(t, err)
		t.Cleanup(func() { files[i].Close() })
	}
	return files
}

// requireMemfds checks that the descriptors are those of memfds, in order, and closes them.
func requireMemfds(t testing.TB, files *Files, n int) {
	t.Helper()
	require.Equal(t, n, files.Len())
	for i := range n {
		f := files.Take(i)
		require.NotNil(t, f)
		text, err := io.ReadAll(io.NewSectionReader(f, 0, 100))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(i), string(text))
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC, "received descriptors must not leak into children")
		require.NoError(t, f.Close())
	}
}

// descriptorCount returns the number of open descriptors of this process.
func descriptorCount(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// requireSameDescriptors checks at the end of the test that it left no descriptor open. It must be called before the
// test registers other cleanups.
func requireSameDescriptors(t testing.TB) {
	t.Helper()
	warmUpPoller(t)
	before := descriptorCount(t)
	t.Cleanup(func() { require.Equal(t, before, descriptorCount(t), "descriptors") })
}

// warmUpPoller makes the runtime open the descriptors that it keeps.
func warmUpPoller(t testing.TB) {
	a, b, err := Pipe(Limits{})
	require.NoError(t, err)
	a.Close()
	b.Close()
}

// sendRaw sends b in one message, with the descriptors on its first byte.
func sendRaw(t testing.TB, c *net.UnixConn, b []byte, files ...*os.File) {
	t.Helper()
	var rights []byte
	if len(files) > 0 {
		fds, err := fileDescriptors(files)
		require.NoError(t, err)
		rights = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, rights, nil)
	require.NoError(t, err)
	require.Equal(t, len(b), n)
}
