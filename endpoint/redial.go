package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// Dialing again starts at firstBackoff and doubles up to lastBackoff, each pause shortened by up to half at random so
// that the clients of an owner that came back do not all come at once. An owner has dialTimeout to answer one attempt.
const (
	firstBackoff = 5 * time.Millisecond
	lastBackoff  = time.Second
	dialTimeout  = 5 * time.Second
)

// attempt is one try to connect, shared by all who need the connection.
type attempt struct {
	now  chan struct{} // closed to skip the pause before it
	done chan struct{} // closed when it has ended
	link *link.Link
	err  error
}

// connected returns the live connection, or dials until there is one or ctx ends.
func (c *Client) connected(ctx context.Context) (*link.Link, error) {
	for {
		l, a, err := c.linkOrAttempt(false)
		if err != nil || l != nil {
			return l, err
		}
		l, err = a.wait(ctx)
		if err == nil || !errors.Is(err, status.ErrUnavailable) || ctx.Err() != nil || errors.Is(err, status.ErrServerClosed) {
			return l, err
		}
	}
}

// connectNow returns the live connection, or that of a single attempt without a pause before it.
func (c *Client) connectNow(ctx context.Context) (*link.Link, error) {
	l, a, err := c.linkOrAttempt(true)
	if err != nil || l != nil {
		return l, err
	}
	return a.wait(ctx)
}

// wait returns what came of the attempt. When ctx ends first its cause is returned together with [ErrUnavailable].
func (a *attempt) wait(ctx context.Context) (*link.Link, error) {
	select {
	case <-a.done:
		return a.link, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", status.ErrUnavailable, context.Cause(ctx))
	}
}

// linkOrAttempt returns the live connection, or else the attempt under way, which it starts if there is none.
func (c *Client) linkOrAttempt(now bool) (*link.Link, *attempt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, c.closedError()
	}
	if c.link != nil && c.link.Reason() == nil {
		return c.link, nil, nil
	}
	a := c.attempt
	if a == nil {
		a = &attempt{now: make(chan struct{}), done: make(chan struct{})}
		c.attempt = a
		c.work.Add(1)
		go c.try(a, c.failed)
	}
	if now {
		select {
		case <-a.now:
		default:
			close(a.now)
		}
	}
	return nil, a, nil
}

// closedError is what requests get after Close.
func (c *Client) closedError() error {
	if c.dialSelf != nil {
		return status.ErrServerClosing
	}
	return fmt.Errorf("client of %s: %w", c.opts.Socket, status.ErrClosed)
}

// try makes one attempt after a pause that grows with the number of failures before it.
func (c *Client) try(a *attempt, failures int) {
	defer c.work.Done()
	c.pause(a, failures)
	a.link, a.err = c.open()
	c.settle(a)
	close(a.done)
}

// pause waits before an attempt.
func (c *Client) pause(a *attempt, failures int) {
	if failures == 0 {
		return
	}
	d := min(firstBackoff<<min(failures-1, 16), lastBackoff)
	d -= time.Duration(rand.Int64N(int64(d)/2 + 1))
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.now:
	case <-c.ctx.Done():
	}
}

// settle notes what came of the attempt, and starts the next one if somebody still needs a connection.
func (c *Client) settle(a *attempt) {
	c.mu.Lock()
	c.attempt = nil
	if a.err != nil {
		c.failed++
		c.dials.failed(a.err)
		if c.closed { // which is why it failed, whatever it says
			a.err = fmt.Errorf("client of %s: %w", c.opts.Socket, status.ErrClosed)
		}
		c.mu.Unlock()
		c.keepTrying()
		return
	}
	before := c.failed
	c.failed = 0
	if c.closed {
		c.mu.Unlock()
		a.link.HangUp()
		a.link, a.err = nil, c.closedError()
		return
	}
	c.eager = false
	c.dials.succeeded()
	c.link = a.link
	c.links[a.link] = struct{}{}
	c.work.Add(1)
	c.mu.Unlock()
	go c.tend(a.link, before)
	c.catchUp(a.link)
}

// tend sees to it that handles and watchers get another connection when this one is over, and waits for its end: an
// owner that has said goodbye still answers what it was asked before. A connection that was over at once counts as one
// failure more than there were before it.
func (c *Client) tend(l *link.Link, failed int) {
	defer c.work.Done()
	start := time.Now()
	<-l.Over
	c.mu.Lock()
	if c.link == l {
		c.link = nil
	}
	if time.Since(start) < lastBackoff {
		c.failed = max(c.failed, failed+1)
	}
	c.mu.Unlock()
	c.ownerLost(l)
	c.referencesLost(l)
	c.keepTrying()
	l.Wait()
	c.mu.Lock()
	delete(c.links, l)
	c.mu.Unlock()
}

// keepTrying starts an attempt if handles, watchers or references need a connection, or the client has not had one yet
// that shall.
func (c *Client) keepTrying() {
	c.mu.Lock()
	needed := !c.closed && (c.eager || len(c.handles)+len(c.watchers)+c.refs.count > 0)
	c.mu.Unlock()
	if needed {
		_, _, _ = c.linkOrAttempt(false)
	}
}

// open dials, introduces the client, and takes up again what handles and watchers had.
func (c *Client) open() (*link.Link, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	l, err := c.meet(ctx)
	if err != nil {
		return nil, err
	}
	go l.Read()
	if err := c.resume(l); err != nil {
		return nil, err
	}
	return l, nil
}

// meet introduces the client to the owner, over the socket unless that is one of this process.
func (c *Client) meet(ctx context.Context) (l *link.Link, err error) {
	if c.dialSelf != nil {
		conn, hello, err := c.dialSelf()
		if err != nil {
			return nil, err
		}
		return link.NewOwn(conn, hello), nil
	}
	if server := inproc.Find(c.opts.Socket); server != nil && !c.opts.OverSocket {
		var conn *inproc.Pipe
		var hello message.Hello
		if conn, hello, err = server.Dial(ctx, c.introduction(), c.opts.Limits); err == nil {
			l = link.NewPipe(conn, hello)
		}
	} else {
		var conn *wire.Conn
		if conn, err = c.dial(ctx); err != nil {
			return nil, err
		}
		l, err = link.Handshake(ctx, conn, c.introduction())
	}
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.opts.Socket, err)
	}
	return l, nil
}

// dial connects and checks who the owner is, by what the kernel says of it.
func (c *Client) dial(ctx context.Context) (*wire.Conn, error) {
	raw, err := connect(ctx, c.opts.Socket)
	if err != nil {
		return nil, dialError(c.opts.Socket, err)
	}
	conn, err := wire.NewConn(raw.(*net.UnixConn), c.opts.Limits)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.opts.Socket, err)
	}
	if err := c.trusted(conn.Peer()); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// connect waits for a place where an owner's queue of clients is full: the kernel does not, as it does for other
// sockets.
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

// trusted reports whether a peer may be the owner, by what the kernel says of it.
func (c *Client) trusted(peer wire.Credentials) error {
	if peer.SameUser() || slices.Contains(c.opts.AllowUIDs, peer.UID) {
		return nil
	}
	return fmt.Errorf("%w: the owner on socket %s runs as uid %d, this process as uid %d; say --owner-uid %d (ClientOptions.AllowUIDs) to trust it",
		status.ErrPermission, c.opts.Socket, peer.UID, os.Geteuid(), peer.UID)
}

// dialError says why nobody answered, and what to do about it.
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
