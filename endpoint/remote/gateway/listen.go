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
)

// boundedListener refuses connections beyond a limit at once, instead of letting their clients wait for an answer that
// does not come.
type boundedListener struct {
	net.Listener
	name    string
	max     int64
	open    atomic.Int64
	refused atomic.Uint64
}

// listen binds an address of the configuration; nil where it is off.
func listen(name, address string, max int) (*boundedListener, error) {
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
	return &boundedListener{Listener: l, name: name, max: int64(max)}, nil
}

// removeDeadSocket removes a socket file on which nobody listens any more. Anything else is left alone.
func removeDeadSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and no socket", path)
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
		return &countedConn{Conn: conn, release: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
	}
}

// countedConn gives its place back when it is closed.
type countedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// ReadFrom implements io.ReaderFrom, so that the kernel sends files.
func (c *countedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// addressOf is a listener's address for peers; empty where it is off.
func addressOf(l *boundedListener) string {
	if l == nil {
		return ""
	}
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}
