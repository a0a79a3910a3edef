package connector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// handshake exchanges hellos with the owner, through the socket or within the process.
func (c *Config) handshake(ctx context.Context) (l *link.Link, err error) {
	if c.DialSelf != nil {
		conn, hello, err := c.DialSelf()
		if err != nil {
			return nil, err
		}
		return link.NewOwn(conn, hello), nil
	}
	if server := inproc.Find(c.Socket); server != nil && !c.OverSocket {
		var conn *inproc.Pipe
		var hello message.Hello
		if conn, hello, err = server.Dial(ctx, c.Hello(), c.Limits); err == nil {
			l = link.NewPipe(conn, hello)
		}
	} else {
		var conn *wire.Conn
		if conn, err = c.dial(ctx); err != nil {
			return nil, err
		}
		l, err = link.Handshake(ctx, conn, c.Hello())
	}
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.Socket, err)
	}
	return l, nil
}

// dial connects and verifies the credentials of the owner that the kernel reports.
func (c *Config) dial(ctx context.Context) (*wire.Conn, error) {
	raw, err := connect(ctx, c.Socket)
	if err != nil {
		return nil, dialError(c.Socket, err)
	}
	conn, err := wire.NewConn(raw.(*net.UnixConn), c.Limits)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.Socket, err)
	}
	if err := c.trusted(conn.Peer()); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
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
	if peer.SameUser() || slices.Contains(c.AllowUIDs, peer.UID) {
		return nil
	}
	return fmt.Errorf("%w: the owner on socket %s runs as uid %d, this process as uid %d; set --owner-uid %d (ClientOptions.AllowUIDs) to trust it",
		status.ErrPermission, c.Socket, peer.UID, os.Geteuid(), peer.UID)
}

// dialError adds the cause and the remedy to the error of a failed dial.
func dialError(socket string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w on %s: there is no such socket; start an owner with: sharedtensor serve --socket %s NAME=FILE",
			status.ErrUnavailable, socket, socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w on %s: its owner has ended and left the socket behind", status.ErrUnavailable, socket)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("socket %s: %w: it belongs to another user; its owner lets this one in with --allow-uid %d, and --owner-uid trusts that owner",
			socket, status.ErrPermission, os.Geteuid())
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("%w on %s: its queue of clients is full: %w", status.ErrUnavailable, socket, err)
	}
	return fmt.Errorf("%w on %s: %w", status.ErrUnavailable, socket, err)
}
