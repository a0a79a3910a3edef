// Package connector keeps a client connected to its owner: it dials, pauses after failures, exchanges hellos, and has
// what lives on the connections taken up again on the next one. It knows nothing of what that is.
package connector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/change"
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

// Config says which owner a connector talks to, and how.
type Config struct {
	// Socket is the owner's path. With OverSocket the client goes over it to a server of its own process too.
	Socket     string
	OverSocket bool
	// AllowUIDs are the users, beside the client's own, whose processes may be the owner.
	AllowUIDs []uint32
	// Limits bound frames and descriptors from the owner.
	Limits wire.Limits
	// Hello is what the client says first on a connection.
	Hello func() message.Hello
	// DialSelf connects a server's own client to it; nil for others.
	DialSelf func() (*inproc.Pipe, message.Hello, error)
}

// Connector keeps a client connected for as long as somebody needs it: a request that waits, or what lives on its
// connections. Its methods are safe for concurrent use.
type Connector struct {
	Config

	dependents kinds
	ctx        context.Context // ends with the client
	stop       context.CancelFunc
	work       sync.WaitGroup // dialing, connections, and what was begun by Start and OnNext; added to under mu while not closed

	mu       sync.Mutex
	link     *link.Link              // that requests use; nil while the client is not connected
	links    map[*link.Link]struct{} // that have not ended: link, and those whose owners have said goodbye and still answer
	attempt  *attempt
	failed   int  // attempts in a row
	eager    bool // dials though nobody needs a connection, until it has had one
	dials    Dials
	closed   bool
	notified State // as it was when changed last woke somebody
	changed  change.Signal
}

// New makes a connector that is not connected yet.
func New(c Config) *Connector {
	n := &Connector{Config: c, links: map[*link.Link]struct{}{}}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// AddDependents adds what lives on the connections, before the first of them.
func (c *Connector) AddDependents(all ...Dependents) { c.dependents = append(c.dependents, all...) }

// DialEagerly has the connector dial though nobody needs a connection, until it has had one.
func (c *Connector) DialEagerly() {
	c.mu.Lock()
	c.eager = true
	c.mu.Unlock()
	c.keepTrying()
}

// attempt is one try to connect, shared by all that need the connection.
type attempt struct {
	now  chan struct{} // closed to skip the pause before it
	done chan struct{} // closed when it has ended
	link *link.Link
	err  error
}

// Connected returns the live connection, or dials until there is one or ctx ends.
func (c *Connector) Connected(ctx context.Context) (*link.Link, error) {
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

// ConnectNow returns the live connection, or that of a single attempt without a pause before it.
func (c *Connector) ConnectNow(ctx context.Context) (*link.Link, error) {
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

// linkOrAttempt returns the live connection. Without one it returns the attempt to connect, and starts it if none runs.
func (c *Connector) linkOrAttempt(now bool) (*link.Link, *attempt, error) {
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
func (c *Connector) closedError() error {
	if c.DialSelf != nil {
		return status.ErrServerClosing
	}
	return fmt.Errorf("client of %s: %w", c.Socket, status.ErrClosed)
}

// try makes one attempt after a pause that grows with the number of failures before it.
func (c *Connector) try(a *attempt, failures int) {
	defer c.work.Done()
	c.pause(a, failures)
	a.link, a.err = c.open()
	c.settle(a)
	close(a.done)
}

// pause waits before an attempt.
func (c *Connector) pause(a *attempt, failures int) {
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
func (c *Connector) settle(a *attempt) {
	c.mu.Lock()
	c.attempt = nil
	if a.err != nil {
		c.failed++
		c.dials.failed(a.err)
		c.noteLocked()
		if c.closed { // which is why it failed, whatever it says
			a.err = fmt.Errorf("client of %s: %w", c.Socket, status.ErrClosed)
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
	c.catchUp(a.link)
}

// tend sees to it that what lives on the connections gets another one when this one is over, and waits for its end: an
// owner that has said goodbye still answers what it was asked before. A connection that was over at once counts as one
// failure more than there were before it.
func (c *Connector) tend(l *link.Link, failed int) {
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
	c.dependents.lost(l)
	c.keepTrying()
	l.Wait()
	c.mu.Lock()
	delete(c.links, l)
	c.mu.Unlock()
}

// keepTrying starts an attempt if something lives on the connections, or the client has not had one yet that shall.
func (c *Connector) keepTrying() {
	c.mu.Lock()
	closed, eager := c.closed, c.eager
	c.mu.Unlock()
	if !closed && (eager || c.dependents.needed()) {
		_, _, _ = c.linkOrAttempt(false)
	}
}

// open dials, exchanges hellos, and resumes what lives on the connections.
func (c *Connector) open() (*link.Link, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	l, err := c.handshake(ctx)
	if err != nil {
		return nil, err
	}
	go l.Read()
	if err := c.resume(l); err != nil {
		return nil, err
	}
	return l, nil
}

// OnNext calls resume with the current connection. Without one it dials if that is needed: the next connection resumes
// all dependents. An error of resume means that the connection is broken.
func (c *Connector) OnNext(resume func(context.Context, *link.Link) error) {
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

// Start runs something short that nobody waits for but Close; not at all where that was called already.
func (c *Connector) Start(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.work.Go(what)
}

// Current returns the connection that requests use, or nil while the client is not connected.
func (c *Connector) Current() *link.Link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

// Live returns the connections that have not ended.
func (c *Connector) Live() []*link.Link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.links))
}

// Close ends the connections and all that lives on them, and waits for the work that was begun. A second Close does
// nothing.
func (c *Connector) Close() {
	links, first := c.end()
	if !first {
		return
	}
	c.dependents.end()
	for _, l := range links {
		l.HangUp()
	}
	c.work.Wait()
}

// end notes that the client was closed: nothing is dialled or begun any more. It returns the connections there are, and
// false where it was closed before.
func (c *Connector) end() (links []*link.Link, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	links = slices.Collect(maps.Keys(c.links))
	c.closed, c.link, c.links = true, nil, nil
	c.changed.End()
	c.stop()
	return links, true
}
