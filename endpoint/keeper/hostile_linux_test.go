package keeper_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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

// The memory that holds a keeper's standard error does not grow with it.
func TestOutputOfKeeperIsLimited(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "k.sock")
	p, err := keeper.Connect(keeper.Options{
		Socket: socket, Command: []string{"sh", "-c", `head -c 1000000 /dev/zero >&2 2>/dev/null; exec "$@"`, "sh", os.Args[0], "keep", socket},
	})
	require.NoError(t, err)
	defer p.Close()
	defer func() { _ = syscall.Kill(p.PID(), syscall.SIGKILL) }()
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
