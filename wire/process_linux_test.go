package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func init() {
	// answers each request with its body and descriptors
	roles["mirror"] = func(u *net.UnixConn) error {
		return serve(u, func(c *Conn, f Frame) error {
			files := make([]*os.File, f.Files.Len())
			for i := range files {
				files[i] = f.Files.Take(i)
				defer files[i].Close()
			}
			return c.Send(KindResponse, f.ID, f.Body, files...)
		})
	}
	// receives with no free descriptor and reports the result
	roles["full"] = func(u *net.UnixConn) error {
		c, err := NewConn(u, Limits{})
		if err != nil {
			return err
		}
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		fd, err := unix.Dup(0) // the lowest free number
		if err != nil {
			return err
		}
		unix.Close(fd)
		limit.Cur = uint64(fd + 2)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		_, err = c.Receive()
		return c.Send(KindGoodbye, 0, textItem(fmt.Sprint(
			errors.Is(err, ErrBudget), errors.Is(err, unix.EMFILE))))
	}
	// ends in the middle of a frame
	roles["quitter"] = func(u *net.UnixConn) error {
		_, err := u.Write(frameBytes(KindRequest, 0, 1, item(100))[:50])
		return err
	}
}

// textItem returns a text of at most 23 bytes as a CBOR item.
func textItem(text string) []byte { return append([]byte{0x60 + byte(len(text))}, text...) }

func serve(u *net.UnixConn, answer func(*Conn, Frame) error) error {
	c, err := NewConn(u, Limits{})
	if err != nil {
		return err
	}
	for {
		f, err := c.Receive()
		if err != nil {
			return nil
		}
		if err := answer(c, f); err != nil {
			return err
		}
	}
}

func TestTwoProcesses(t *testing.T) {
	requireSameDescriptors(t)
	u, cmd := startRole(t, "mirror")
	c, err := NewConn(u, Limits{})
	require.NoError(t, err)
	require.Equal(t, Credentials{PID: int32(cmd.Process.Pid), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, c.Peer())
	require.True(t, c.Peer().SameUser())
	require.False(t, Credentials{UID: uint32(os.Geteuid()) + 1}.SameUser())

	for _, n := range []int{0, 1, 253, 254, 600} {
		require.NoError(t, c.Send(KindRequest, uint64(n), item(200), memfds(t, n)...))
		f, err := c.Receive()
		require.NoError(t, err)
		require.Equal(t, Frame{Kind: KindResponse, ID: uint64(n), Body: item(200), Files: f.Files}, f)
		requireMemfds(t, f.Files, n)
	}

	require.NoError(t, cmd.Process.Kill())
	_, err = c.Receive()
	require.Error(t, err)
	require.NoError(t, c.Close())
}

func TestReceiverWithoutFreeDescriptors(t *testing.T) {
	u, _ := startRole(t, "full")
	c, err := NewConn(u, Limits{})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Send(KindRequest, 1, item(10), memfds(t, 20)...))
	f, err := c.Receive()
	require.NoError(t, err)
	require.Equal(t, textItem("true true"), f.Body)
}

func TestPeerLeavesWithinAFrame(t *testing.T) {
	u, _ := startRole(t, "quitter")
	c, err := NewConn(u, Limits{})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Receive()
	require.ErrorContains(t, err, "unexpected EOF")
}
