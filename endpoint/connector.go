package endpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
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

// dependents are what lives on the connections of a client, and does not end with one of them. Its methods are called
// without the connector's lock.
type dependents interface {
	// needed reports whether any of them needs a connection.
	needed() bool
	// resume takes them up on a new connection. An error is of the connection, which is given up.
	resume(l *link.Link) error
	// catchUp takes up what came too late for resume.
	catchUp(l *link.Link)
	// lost tells them that a connection is over.
	lost(l *link.Link)
}

// connector keeps a client connected for as long as somebody needs it: a request that waits, or what lives on its
// connections.
type connector struct {
	opts    ClientOptions
	devices transfer.Devices
	// dialSelf connects a server's own client to it; nil for others.
	dialSelf func() (*inproc.Pipe, message.Hello, error)
	tenants  dependents

	ctx  context.Context // ends with the client
	stop context.CancelFunc
	work sync.WaitGroup // dialing, connections, and what was begun by start and onNext; added to under mu while not closed

	mu      sync.Mutex
	link    *link.Link              // for requests; nil while there is no connection
	links   map[*link.Link]struct{} // that have not ended: link, and those whose owners have said goodbye and still answer
	attempt *attempt
	failed  int  // attempts in a row
	eager   bool // dials though nobody needs a connection, until it has had one
	dials   dials
	closed  bool
	told    ClientState // the state of which changed told last
	changed signal
}

// dials are what came of a client's attempts to connect.
type dials struct {
	connections, failures uint64
	since                 time.Time // of the last connection
	err                   error     // of the last failure
}

func (d *dials) succeeded() {
	d.connections++
	d.since = time.Now()
}

func (d *dials) failed(err error) {
	d.failures++
	d.err = err
}

// attempt is one try to connect, shared by all that need the connection.
type attempt struct {
	now  chan struct{} // closed to skip the pause before it
	done chan struct{} // closed when it has ended
	link *link.Link
	err  error
}

// connected returns the live connection, or dials until there is one or ctx ends.
func (c *connector) connected(ctx context.Context) (*link.Link, error) {
	for {
		l, a, err := c.linkOrAttempt(false)
		if err != nil || l != nil {
			return l, err
		}
		l, err = a.wait(ctx)
		if err == nil || !errors.Is(err, status.ErrUnavailable) || errors.Is(err, status.ErrServerClosed) {
			return l, err
		}
		if cause := context.Cause(ctx); cause != nil {
			if !errors.Is(err, cause) { // the attempt failed as the time was over
				err = fmt.Errorf("%w: %w", cause, err)
			}
			return nil, err
		}
	}
}

// connectNow returns the live connection, or that of a single attempt without a pause before it.
func (c *connector) connectNow(ctx context.Context) (*link.Link, error) {
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
func (c *connector) linkOrAttempt(now bool) (*link.Link, *attempt, error) {
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
		c.noteLocked()
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
func (c *connector) closedError() error {
	if c.dialSelf != nil {
		return status.ErrServerClosing
	}
	return fmt.Errorf("client of %s: %w", c.opts.Socket, status.ErrClosed)
}

// try makes one attempt after a pause that grows with the number of failures before it.
func (c *connector) try(a *attempt, failures int) {
	defer c.work.Done()
	c.pause(a, failures)
	a.link, a.err = c.open()
	c.settle(a)
	close(a.done)
}

// pause waits before an attempt.
func (c *connector) pause(a *attempt, failures int) {
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
func (c *connector) settle(a *attempt) {
	c.mu.Lock()
	c.attempt = nil
	if a.err != nil {
		c.failed++
		c.dials.failed(a.err)
		c.noteLocked()
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
	c.noteLocked()
	c.work.Add(1)
	c.mu.Unlock()
	go c.tend(a.link, before)
	c.tenants.catchUp(a.link)
}

// tend sees to it that handles and watchers get another connection when this one is over, and waits for its end: an
// owner that has said goodbye still answers what it was asked before. A connection that was over at once counts as one
// failure more than there were before it.
func (c *connector) tend(l *link.Link, failed int) {
	defer c.work.Done()
	start := time.Now()
	<-l.Over
	c.mu.Lock()
	if c.link == l {
		c.link = nil
		c.noteLocked()
	}
	if time.Since(start) < lastBackoff {
		c.failed = max(c.failed, failed+1)
	}
	c.mu.Unlock()
	c.tenants.lost(l)
	c.keepTrying()
	l.Wait()
	c.mu.Lock()
	delete(c.links, l)
	c.mu.Unlock()
}

// keepTrying starts an attempt if something lives on the connections, or the client has not had one yet that shall.
func (c *connector) keepTrying() {
	c.mu.Lock()
	closed, eager := c.closed, c.eager
	c.mu.Unlock()
	if !closed && (eager || c.tenants.needed()) {
		_, _, _ = c.linkOrAttempt(false)
	}
}

// open dials, exchanges hellos, and resumes handles and watchers.
func (c *connector) open() (*link.Link, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	l, err := c.handshake(ctx)
	if err != nil {
		return nil, err
	}
	go l.Read()
	if err := c.tenants.resume(l); err != nil {
		return nil, err
	}
	return l, nil
}

// handshake exchanges hellos with the owner: over the socket, unless the owner is a server of this process.
func (c *connector) handshake(ctx context.Context) (l *link.Link, err error) {
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
		if conn, hello, err = server.Dial(ctx, c.hello(), c.opts.Limits); err == nil {
			l = link.NewPipe(conn, hello)
		}
	} else {
		var conn *wire.Conn
		if conn, err = c.dial(ctx); err != nil {
			return nil, err
		}
		l, err = link.Handshake(ctx, conn, c.hello())
	}
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.opts.Socket, err)
	}
	return l, nil
}

// dial connects and checks who the owner is, by what the kernel says of it.
func (c *connector) dial(ctx context.Context) (*wire.Conn, error) {
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
func (c *connector) trusted(peer wire.Credentials) error {
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

// hello is the client's hello.
func (c *connector) hello() message.Hello {
	label := c.opts.Label
	if label == "" {
		label = filepath.Base(os.Args[0])
	}
	return message.Hello{Version: Version(), PID: int32(os.Getpid()), Label: limits.ShortLabel(label), Devices: c.devices.Describe(), Features: features(c.opts.Limits)}
}

// onNext takes something up again on the connection that there is now, or leaves it to the next one. An error is of the
// connection.
func (c *connector) onNext(resume func(context.Context, *link.Link) error) {
	c.mu.Lock()
	l := c.link
	if l != nil { // so the client is not closed
		c.work.Add(1)
	}
	c.mu.Unlock()
	if l == nil {
		c.keepTrying()
		return
	}
	go func() {
		defer c.work.Done()
		_ = resume(c.ctx, l) // with the connection goes what could not be taken up, and the next one sees to it
	}()
}

// start runs something short that nobody waits for but Close; not at all where that was called already.
func (c *connector) start(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.work.Go(what)
}

// current returns the connection for requests; nil while there is none.
func (c *connector) current() *link.Link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

// live returns the connections that have not ended.
func (c *connector) live() []*link.Link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.links))
}

// end notes that the client was closed: nothing is dialled or begun any more. It returns the connections there are, and
// false where it was closed before.
func (c *connector) end() (links []*link.Link, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	links = slices.Collect(maps.Keys(c.links))
	c.closed, c.link, c.links = true, nil, nil
	c.changed.end()
	c.stop()
	return links, true
}

// standing describes the connection at this moment.
func (c *connector) standing() (state ClientState, server string, d dials) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state = c.stateLocked()
	if state == StateConnected {
		server = c.link.Server.Server
	}
	return state, server, c.dials
}

// noteLocked tells of the state, if it is another than before.
func (c *connector) noteLocked() {
	if state := c.stateLocked(); state != c.told {
		c.told = state
		c.changed.change()
	}
}

func (c *connector) stateLocked() ClientState {
	switch {
	case c.closed:
		return StateClosed
	case c.link != nil && c.link.Reason() == nil:
		return StateConnected
	case c.attempt != nil || c.link != nil: // a connection that is over is given up, and the next one begun, at once
		return StateConnecting
	}
	return StateIdle
}
