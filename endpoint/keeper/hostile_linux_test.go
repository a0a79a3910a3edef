package keeper_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// lingering returns a TCP socket whose last close waits for a peer that does not read.
func lingering(t testing.TB) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	peer, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { peer.Close() })
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err == nil {
		_, err = c.Write(make([]byte, 1<<20))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	f, err := c.(*net.TCPConn).File()
	require.NoError(t, err)
	require.NoError(t, unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}))
	require.NoError(t, c.Close())
	return f
}

// A client passes a descriptor that takes a minute to close. Others are served meanwhile.
func TestDescriptorThatDoesNotClose(t *testing.T) { // not parallel: a process that is started meanwhile would close the socket too
	dir := t.TempDir()
	p := connect(t, dir)
	require.NoError(t, p.Put("a", memory(t, "x")))
	socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, "k.sock"), Net: "unix"})
	require.NoError(t, err)
	c, err := wire.NewConn(socket, wire.Limits{})
	require.NoError(t, err)
	defer c.Close()
	body, err := message.Marshal(map[int]any{1: 1, 2: 1, 3: []string{"b"}}) // put
	require.NoError(t, err)
	f := lingering(t)
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGSTOP)) // so that the close in this process is not the last one
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		return err == nil && strings.Contains(string(stat), ") T ")
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, c.Send(wire.KindRequest, 1, body, f))
	require.NoError(t, f.Close())
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGCONT))
	raw, err := socket.SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the keeper has read the request
		unread := -1
		if err := raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
			return false
		}
		return unread == 0
	}, 10*time.Second, time.Millisecond)
	pid := p.PID()
	for range 20 { // it begins to close the descriptor soon after that
		require.Equal(t, map[string]string{"a": "x"}, contents(t, p))
		time.Sleep(5 * time.Millisecond)
	}
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err = c.Receive()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the descriptor is not closed yet")
	require.NoError(t, p.Put("c", memory(t, "x")))
	require.Equal(t, map[string]string{"a": "x", "c": "x"}, contents(t, p))
	require.Equal(t, pid, p.PID())
}

// A program that does not become a keeper is ended, because each attempt would leave one behind.
func TestProgramThatDoesNotListen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	started := filepath.Join(dir, "pid")
	_, err := keeper.Connect(keeper.Options{
		Socket: filepath.Join(dir, "k.sock"), Command: []string{"sh", "-c", `echo $$ >"$1"; exec sleep 1000`, "sh", started},
	})
	require.ErrorContains(t, err, "does not listen")
	text, err := os.ReadFile(started)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, 10*time.Second, time.Millisecond)
}

// While no keeper answers, requests fail at once instead of waiting for an attempt each. The owner recovers.
func TestKeeperThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := connect(t, dir)
	require.NoError(t, p.Put("a", memory(t, "x")))
	pid, socket := p.PID(), filepath.Join(dir, "k.sock")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP)) // connections to it wait until the other one listens
	require.NoError(t, os.Remove(socket))
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	var attempts atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			attempts.Add(1)
			c.Close()
		}
	}()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return p.Put("b", memory(t, "x")) != nil }, 10*time.Second, time.Millisecond)
	before, start := attempts.Load(), time.Now()
	for range 300 {
		_ = p.Put("b", memory(t, "x"))
	}
	require.LessOrEqual(t, attempts.Load()-before, 4+4*int64(time.Since(start)/time.Second))
	require.NoError(t, l.Close())
	require.Eventually(t, func() bool { return p.Put("b", memory(t, "y")) == nil }, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, map[string]string{"a": "x", "b": "y"}, contents(t, p))
}

// The memory that holds a keeper's standard error does not grow with it.
func TestOutputOfKeeperIsLimited(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "k.sock")
	p, err := keeper.Connect(keeper.Options{
		Socket: socket, Command: []string{"sh", "-c", `head -c 1000000 /dev/zero >&2 2>/dev/null; exec "$@"`, "sh", os.Args[0], "keep", socket},
	})
	require.NoError(t, err)
	defer endStore(p)
	info, err := os.Stat(fmt.Sprintf("/proc/%d/fd/2", p.PID()))
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(64<<10))
}

// A service manager closes what its store has no room for. A publication must fail then.
func TestFullStoreOfServiceManager(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	go func() { // it closes all descriptors, also that of a barrier
		for rights := make([]byte, 256); ; {
			_, n, _, _, err := l.ReadMsgUnix(make([]byte, 4096), rights)
			if err != nil {
				return
			}
			messages, _ := unix.ParseSocketControlMessage(rights[:n])
			for _, m := range messages {
				fds, _ := unix.ParseUnixRights(&m)
				for _, fd := range fds {
					unix.Close(fd)
				}
			}
		}
	}()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("FDSTORE", "2")
	s, err := keeper.NewSystemd()
	require.NoError(t, err)
	require.NoError(t, s.Put("j1", memory(t, "x")))
	require.NoError(t, s.Put("v1.0", memory(t, "x")))
	require.NoError(t, s.Put("v1.0", memory(t, "x")), "the same name")
	require.ErrorContains(t, s.Put("v2.0", memory(t, "x")), "FileDescriptorStoreMax")
	require.NoError(t, s.Remove("v1.0"))
	require.NoError(t, s.Put("v2.0", memory(t, "x")))
	t.Setenv("FDSTORE", "") // before systemd 254
	s, err = keeper.NewSystemd()
	require.NoError(t, err)
	for i := range 5 {
		require.NoError(t, s.Put(fmt.Sprint("v", i), memory(t, "x")))
	}
}

// asUser runs a function on a thread of another user. The thread ends afterwards.
func asUser(t testing.TB, uid int, run func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // until the goroutine ends, so that no other one gets the thread
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- errno
			return
		}
		done <- run()
	}()
	require.NoError(t, <-done)
}

// A keeper serves its own user, and an owner uses only a keeper of its own user, also if both can open the socket.
func TestOtherUsers(t *testing.T) {
	drivertest.Needs(t, "root", os.Geteuid() == 0, "only root can become another user")
	const other = 65534
	dir := t.TempDir()
	p := connect(t, dir)
	require.NoError(t, p.Put("secret", memory(t, "x")))
	socket := filepath.Join(dir, "k.sock")
	for path := dir; path != os.TempDir(); path = filepath.Dir(path) {
		require.NoError(t, os.Chmod(path, 0o777))
	}
	require.NoError(t, os.Chmod(socket, 0o777))
	body, err := message.Marshal(map[int]any{1: 1, 2: 3}) // names
	require.NoError(t, err)
	asUser(t, other, func() error {
		s, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			return err
		}
		c, err := wire.NewConn(s, wire.Limits{})
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.Send(wire.KindRequest, 1, body) // fails if the keeper has closed the connection
		if f, err := c.Receive(); err == nil {
			return fmt.Errorf("the keeper answered %q", f.Body)
		}
		return nil
	})
	require.Equal(t, map[string]string{"secret": "x"}, contents(t, p))

	foreign := filepath.Join(dir, "foreign.sock")
	var l net.Listener
	asUser(t, other, func() (err error) {
		l, err = net.Listen("unix", foreign)
		return err
	})
	defer l.Close()
	_, err = keeper.Connect(keeper.Options{Socket: foreign, Command: []string{"false"}})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, strconv.Itoa(other))
}

// An owner checks what it gets from a keeper: memory that is not sealed, too small, or no memory is not served. The versions
// are listed as not adopted and stay in the keeper until their name is withdrawn. Numbers continue nevertheless.
func TestInvalidMemoryIsNotAdopted(t *testing.T) {
	dir := t.TempDir()
	store := connect(t, dir)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	version := uint64(0)
	for what, replace := range map[string]func(size int64) *os.File{
		"not sealed": func(size int64) *os.File {
			f := memory(t, "x")
			require.NoError(t, f.Truncate(size))
			return f
		},
		"too small": func(int64) *os.File { return sealed(t, "x") },
		"no memory": func(int64) *os.File {
			f, err := os.Open(os.DevNull)
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
			return f
		},
	} {
		s, err := newServer(dir+"/s.sock", dev, store)
		require.NoError(t, err)
		require.Empty(t, s.Adopted(), what)
		sd, err := modelOf(dev, 1)
		require.NoError(t, err)
		got, err := s.Publish(t.Context(), "m", sd, endpoint.PublishOptions{})
		require.NoError(t, err)
		require.Equal(t, version+1, got, "%s: numbers continue", what)
		version = got
		require.NoError(t, sd.Close())
		require.NoError(t, s.Close())
		stored, err := store.Stored()
		require.NoError(t, err)
		for name, f := range stored {
			if strings.HasPrefix(name, "v") {
				info, err := f.Stat()
				require.NoError(t, err)
				require.NoError(t, store.Put(name, replace(info.Size())))
			}
			require.NoError(t, f.Close())
		}
	}
	s, err := newServer(dir+"/s.sock", dev, store)
	require.NoError(t, err)
	require.Empty(t, s.Adopted())
	models, err := s.List(t.Context())
	require.NoError(t, err)
	require.Len(t, models, 1)
	require.Zero(t, models[0].Current)
	require.Len(t, models[0].NotAdopted, 3)
	require.Len(t, contents(t, store), 4)
	require.NoError(t, s.Withdraw(t.Context(), "m"))
	require.ErrorIs(t, s.Withdraw(t.Context(), "m"), endpoint.ErrNotFound)
	require.NoError(t, s.Close())
	require.Eventually(t, func() bool { return len(contents(t, store)) == 1 }, 10*time.Second, time.Millisecond, "only the journal stays")
}
