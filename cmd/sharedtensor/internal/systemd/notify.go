// Package systemd implements socket activation and service notifications.
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

// Notifier reports the state of a service to the service manager with the protocol of sd_notify(3): datagrams of
// NAME=VALUE lines to the Unix socket in NOTIFY_SOCKET. A nil notifier does nothing.
type Notifier struct {
	address net.UnixAddr

	mu   sync.Mutex
	last time.Time // time of the last progress
	name string    // model of the last progress
}

// NewNotifier returns nil if the service manager did not request notifications.
func NewNotifier() (*Notifier, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	// A leading @ means an abstract socket, both to systemd and to package net.
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "@") {
		return nil, fmt.Errorf("NOTIFY_SOCKET is %q: only the path of a Unix socket or @NAME is supported", name)
	}
	return &Notifier{address: net.UnixAddr{Name: name, Net: "unixgram"}}, nil
}

// Tell sends a state, such as "READY=1", on a new connection.
func (n *Notifier) Tell(lines ...string) error {
	if n == nil {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &n.address)
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// extendTimeout is the start timeout that each progress notification requests.
const extendTimeout = 30 * time.Second

// Progress reports the progress of a load, at most once a second for each model, and extends the start timeout, because
// large models can take longer to load than the service manager's default timeout.
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
		// best effort: a status line is informational
		_ = n.Tell(fmt.Sprintf("STATUS=loading %s: %s of %s", term.Printable(name), term.FormatBytes(done), term.FormatBytes(total)),
			fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extendTimeout.Microseconds()))
		n.mu.Lock()
		n.last = time.Now() // the service manager may be slow to read
		n.mu.Unlock()
	}
}
