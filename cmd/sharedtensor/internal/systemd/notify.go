package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

// Notifier tells the service manager how a service stands, with the protocol of sd_notify(3): datagrams of NAME=VALUE
// lines to the Unix socket that NOTIFY_SOCKET names. A nil notifier tells nobody.
type Notifier struct {
	address net.UnixAddr

	mu   sync.Mutex
	last time.Time // of the last progress
	name string    // that it was of
}

// NewNotifier returns nil where no service manager asked to be told.
func NewNotifier() (*Notifier, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	// An @ stands for the zero byte of an abstract socket, to systemd and to package net alike.
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "@") {
		return nil, fmt.Errorf("NOTIFY_SOCKET is %q: only the path of a Unix socket or @NAME is supported", name)
	}
	return &Notifier{address: net.UnixAddr{Name: name, Net: "unixgram"}}, nil
}

// Tell sends a state, such as "READY=1". Each has a connection of its own, so that nothing has to be kept.
func (n *Notifier) Tell(lines ...string) error {
	if n == nil {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &n.address)
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

// extendTimeout is how much longer a service manager is asked to wait with every sign of progress.
const extendTimeout = 30 * time.Second

// Progress tells how far a load has come, at most once a second for each model, and asks for time: large models take
// longer to load than a service manager waits by itself.
func (n *Notifier) Progress(name string, done, total int64) {
	if n == nil {
		return
	}
	n.mu.Lock()
	due := n.name != name || time.Since(n.last) >= time.Second
	if due {
		n.last, n.name = time.Now(), name
	}
	n.mu.Unlock()
	if due {
		// What matters is told by tell; a lost status line does not.
		_ = n.Tell(fmt.Sprintf("STATUS=loading %s: %s of %s", term.Printable(name), term.FormatBytes(done), term.FormatBytes(total)),
			fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extendTimeout.Microseconds()))
	}
}
