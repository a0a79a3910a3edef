package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config describes the owner and how to connect to it.
type Config struct {
	// Socket is the owner's path. If OverSocket is set, the client uses the socket even if the owner is in this
	// process.
	Socket     string
	OverSocket bool
	// AllowUIDs are the users, in addition to the client's own, whose processes may be the owner.
	AllowUIDs []uint32
	// Wait makes all requests wait for an owner, not only requests with a deadline.
	Wait bool
	// Limits bound frames and descriptors from the owner.
	Limits wire.Limits
	// Devices are the devices on which memory can be mapped.
	Devices transfer.Devices
	// Hello is the client's hello.
	Hello message.Hello
	// DialSelf connects a server's own client to it; nil for others.
	DialSelf func() (*transport.Pipe, message.Hello, error)
	// Log receives messages for operators.
	Log *slog.Logger
}

// importer maps memory of the owner.
func (c *Config) importer() transfer.Importer {
	return transfer.Importer{Devices: c.Devices, Socket: c.Socket}
}

// open exchanges hellos with the owner, through the socket or within the process.
func (c *Config) open(ctx context.Context) (conn *Conn, err error) {
	if c.DialSelf != nil {
		raw, hello, err := c.DialSelf()
		if err != nil {
			return nil, err
		}
		return newOwn(raw, hello), nil
	}
	if server := transport.FindListener(c.Socket); server != nil && !c.OverSocket {
		var raw *transport.Pipe
		var hello message.Hello
		if raw, hello, err = server.Dial(ctx, c.Hello, c.Limits); err == nil {
			conn = newPipe(raw, hello)
		}
	} else {
		var raw *wire.Conn
		if raw, err = c.dial(ctx); err != nil {
			return nil, err
		}
		conn, err = handshake(ctx, raw, c.Hello)
	}
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.Socket, err)
	}
	return conn, nil
}

// dial connects and verifies the credentials of the owner that the kernel reports.
func (c *Config) dial(ctx context.Context) (*wire.Conn, error) {
	sock, err := connect(ctx, c.Socket)
	if err != nil {
		return nil, dialError(c.Socket, err)
	}
	raw, err := wire.NewConn(sock.(*net.UnixConn), c.Limits)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.Socket, err)
	}
	if err := c.trusted(raw.Peer()); err != nil {
		raw.Close()
		return nil, err
	}
	return raw, nil
}

// connect retries while the owner's accept queue is full. For Unix sockets, a non-blocking connect fails then instead
// of waiting.
func connect(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		raw, err := d.DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.EAGAIN) {
			return raw, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// trusted returns an error if the peer's user may not be the owner.
func (c *Config) trusted(peer wire.Credentials) error {
	if err := peer.Mapped(); err != nil {
		return fmt.Errorf("%w: the owner on socket %s: %w", status.ErrPermission, c.Socket, err)
	}
	if peer.Trusted(c.AllowUIDs) {
		return nil
	}
	return fmt.Errorf("%w: the owner on socket %s runs as uid %d, this process as uid %d; set --owner-uid %d (ClientOptions.AllowUIDs) to trust it",
		status.ErrPermission, c.Socket, peer.UID, os.Geteuid(), peer.UID)
}

// dialError adds the cause and the remedy to the error of a failed dial.
func dialError(socket string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		kept := ""
		if _, err := os.Lstat(socket + ".keep"); err == nil {
			kept = "; the next owner with --keep adopts what the keeper on " + socket + ".keep holds"
		}
		return fmt.Errorf("%w on %s: there is no such socket; start your owner, or: sharedtensor serve --socket %s NAME=FILE%s",
			status.ErrUnavailable, socket, socket, kept)
	case errors.Is(err, syscall.ECONNREFUSED):
		if info, err := os.Stat(socket); err == nil && info.Mode().Type() != os.ModeSocket {
			return fmt.Errorf("%w on %s: it is not a socket", status.ErrUnavailable, socket)
		}
		return fmt.Errorf("%w on %s: its owner has ended and left the socket behind", status.ErrUnavailable, socket)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("socket %s: %w: it belongs to another user; its owner lets this one in with --allow-uid %d, and --owner-uid trusts that owner",
			socket, status.ErrPermission, os.Geteuid())
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("%w on %s: its queue of clients is full: %w", status.ErrUnavailable, socket, err)
	}
	return fmt.Errorf("%w on %s: %w", status.ErrUnavailable, socket, err)
}
