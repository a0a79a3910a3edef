package gateway

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// boundedListener closes connections over a limit immediately, so that their clients do not wait in vain.
type boundedListener struct {
	net.Listener
	name    string
	byUser  bool // look up the user of each connection
	max     int64
	open    atomic.Int64
	refused atomic.Uint64
}

// listen binds a configured address. It returns nil if the listener is off.
func (g *Gateway) listen(name, address string, max int) (*boundedListener, error) {
	if address == Off {
		return nil, nil
	}
	network, at := "tcp", address
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		network, at = "unix", path
		if err := removeDeadSocket(path); err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
	}
	l, err := net.Listen(network, at)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", name, err)
	}
	if network == "unix" {
		if err := os.Chmod(at, 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("--%s: %w", name, err), l.Close())
		}
	}
	return &boundedListener{Listener: l, name: name, max: int64(max), byUser: g.ids.byUser()}, nil
}

// removeDeadSocket removes a socket file that has no listener. It keeps any other file.
func removeDeadSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		return errors.Join(fmt.Errorf("another process serves on %s", path), conn.Close())
	}
	return os.Remove(path)
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) > l.max {
			l.open.Add(-1)
			l.refused.Add(1)
			_ = conn.Close()
			continue
		}
		remote := conn.RemoteAddr()
		if l.byUser {
			remote = admission.WithUser(conn)
		}
		return &countedConn{Conn: conn, remote: remote, release: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
	}
}

// countedConn frees its slot in the listener when it is closed.
type countedConn struct {
	net.Conn
	remote  net.Addr
	release func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// RemoteAddr implements net.Conn. It carries the user if connections are admitted by their user.
func (c *countedConn) RemoteAddr() net.Addr { return c.remote }

// ReadFrom implements io.ReaderFrom, so that the kernel sends files.
func (c *countedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// addressOf returns a listener's address for peers, or an empty string if it is off.
func addressOf(l *boundedListener) string {
	if l == nil {
		return ""
	}
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}
