package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
)

// namedListener is a listener of the gateway with the name of its flag.
type namedListener struct {
	*edge.Listener
	name string
}

// listen binds a configured address. It returns nil if the listener is off.
func (g *Gateway) listen(name, address string, max int) (*namedListener, error) {
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
	bounded := edge.Listen(l, max, g.config.Stall)
	if len(g.proxies) > 0 {
		bounded.Proxy = g.proxies.contains
	}
	if g.ids.byUser() {
		bounded.Remote = admission.WithUser
	}
	return &namedListener{bounded, name}, nil
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

// addressOf returns a listener's address for peers, or an empty string if it is off.
func addressOf(l *namedListener) string {
	if l == nil {
		return ""
	}
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}
