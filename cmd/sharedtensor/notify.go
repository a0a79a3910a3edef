package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// notifier tells the service manager how a service stands, with the protocol of sd_notify(3): datagrams of NAME=VALUE lines to the Unix
// socket that NOTIFY_SOCKET names. A nil notifier tells nobody.
type notifier struct {
	address net.UnixAddr

	mu   sync.Mutex
	last time.Time // of the last progress
	name string    // that it was of
}

// newNotifier returns nil where no service manager asked to be told.
func newNotifier() (*notifier, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	// An @ stands for the zero byte of an abstract socket, to systemd and to package net alike.
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "@") {
		return nil, fmt.Errorf("NOTIFY_SOCKET is %q: only the path of a Unix socket or @NAME is supported", name)
	}
	return &notifier{address: net.UnixAddr{Name: name, Net: "unixgram"}}, nil
}

// tell sends a state, such as "READY=1". Each has a connection of its own, so that nothing has to be kept.
func (n *notifier) tell(lines ...string) error {
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

// patience is how much longer a service manager is asked to wait with every sign of progress.
const patience = 30 * time.Second

// progress tells how far a load has come, at most once a second for each model, and asks for time: large models take longer to load
// than a service manager waits by itself.
func (n *notifier) progress(name string, done, total int64) {
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
		_ = n.tell(fmt.Sprintf("STATUS=loading %s: %s of %s", printable(name), formatBytes(done), formatBytes(total)),
			fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", patience.Microseconds()))
	}
}
