// Package connector keeps a client connected to its owner. It dials, pauses after failures, exchanges hellos, and
// resumes the client's dependents (leases, watches, references, offers) on each new connection.
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

// The pause before the next attempt starts at firstBackoff and doubles up to lastBackoff. Up to half of it is removed
// at random so that the clients of a restarted owner do not all dial at once. dialTimeout limits one attempt.
const (
	firstBackoff = 5 * time.Millisecond
	lastBackoff  = time.Second
	dialTimeout  = 5 * time.Second
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
	// Hello returns the client's hello.
	Hello func() message.Hello
	// DialSelf connects a server's own client to it; nil for others.
	DialSelf func() (*inproc.Pipe, message.Hello, error)
}

// Connector keeps a client connected while a request waits or a dependent needs a connection. Its methods are safe for
// concurrent use.
type Connector struct {
	Config

	dependents dependents
	ctx        context.Context // ends with the client
	stop       context.CancelFunc
	work       sync.WaitGroup // attempts, connections, and functions started by Start and OnNext; added to under mu while not closed

	mu       sync.Mutex
	link     *link.Link              // used for requests; nil while the client is not connected
	links    map[*link.Link]struct{} // have not ended: link, and links whose owners have said goodbye and still answer
	attempt  *attempt
	failed   int  // consecutive failed attempts
	eager    bool // dial until connected once, even if no request or dependent needs a connection
	dials    Dials
	closed   bool
	notified State // state at the last change notification
	changed  change.Signal
}

// New returns a connector that is not connected yet.
func New(c Config) *Connector {
	n := &Connector{Config: c, links: map[*link.Link]struct{}{}}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// AddDependents adds dependents. Call it before the first connection.
func (c *Connector) AddDependents(all ...Dependents) { c.dependents = append(c.dependents, all...) }

// DialEagerly makes the connector dial until it has been connected once, even if no request or dependent needs a
// connection.
func (c *Connector) DialEagerly() {
	c.mu.Lock()
	c.eager = true
	c.mu.Unlock()
	c.keepTrying()
}

// attempt is one attempt to connect. All callers that need the connection share it.
type attempt struct {
	now  chan struct{} // closed to skip the pause before it
	done chan struct{} // closed when the attempt has ended
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
			if !errors.Is(err, cause) { // the attempt failed because the deadline passed
				err = fmt.Errorf("%w: %w", cause, err)
			}
			return nil, err
		}
	}
}

// ConnectNow returns the live connection, or makes a single attempt without a pause before it.
func (c *Connector) ConnectNow(ctx context.Context) (*link.Link, error) {
	l, a, err := c.linkOrAttempt(true)
	if err != nil || l != nil {
		return l, err
	}
	return a.wait(ctx)
}

// wait returns the result of the attempt. If ctx ends first, the error wraps both [status.ErrUnavailable] and the cause
// of ctx.
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

// closedError returns the error of requests after Close.
func (c *Connector) closedError() error {
	if c.DialSelf != nil {
		return status.ErrServerClosing
	}
	return status.Closed("the client of " + c.Socket)
}

// try makes one attempt after a pause that grows with the number of failures before it.
func (c *Connector) try(a *attempt, failures int) {
	defer c.work.Done()
	c.pause(a, failures)
	a.link, a.err = c.open()
	c.settle(a)
	close(a.done)
}

// pause waits before the next attempt.
func (c *Connector) pause(a *attempt, failures int) {
	if failures == 0 {
		return
	}
	timer := time.NewTimer(backoff(failures))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.now:
	case <-c.ctx.Done():
	}
}

// backoff returns the pause after the given number of consecutive failures, which is positive.
func backoff(failures int) time.Duration {
	d := min(firstBackoff<<min(failures-1, 16), lastBackoff)
	return d - time.Duration(rand.Int64N(int64(d)/2+1))
}

// settle records the result of the attempt. If it failed, settle starts the next one if a request or dependent needs a
// connection.
func (c *Connector) settle(a *attempt) {
	c.mu.Lock()
	c.attempt = nil
	if a.err != nil {
		c.failed++
		c.dials.failed(a.err)
		c.noteLocked()
		if c.closed { // the attempt failed because of Close
			a.err = status.Closed("the client of " + c.Socket)
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
	go c.superviseLink(a.link, before)
	c.catchUp(a.link)
}

// superviseLink handles the end of a link: it notifies the dependents, starts the next attempt, and waits until the
// link has answered its last requests. A link that ends soon after it began counts as one more failed attempt.
func (c *Connector) superviseLink(l *link.Link, failed int) {
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

// keepTrying starts an attempt if a dependent needs a connection or the eager first connection is missing.
func (c *Connector) keepTrying() {
	c.mu.Lock()
	closed, eager := c.closed, c.eager
	c.mu.Unlock()
	if !closed && (eager || c.dependents.needed()) {
		_, _, _ = c.linkOrAttempt(false)
	}
}

// open dials, exchanges hellos, and resumes the dependents.
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

// OnNext calls resume with the current connection. If there is none, it starts an attempt if needed; the new connection
// resumes all dependents. If resume fails, the connection is closed.
func (c *Connector) OnNext(resume func(context.Context, *link.Link) error) {
	l := c.Current()
	if l == nil {
		c.keepTrying()
		return
	}
	c.Start(func() { c.cutAfter(l, resume(c.ctx, l)) })
}

// cutAfter closes a connection on which a dependent could not be resumed, because only the next connection resumes it
// again. It does not close a connection that refuses new requests: that connection may still deliver answers, and the
// next one is being made.
func (c *Connector) cutAfter(l *link.Link, err error) {
	if err != nil && l.Reason() == nil && c.ctx.Err() == nil {
		l.Cut()
	}
}

// Start runs a short function in a goroutine that Close waits for. It does nothing after Close.
func (c *Connector) Start(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.work.Go(what)
}

// Current returns the connection for requests, or nil if the client is not connected.
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

// Close ends the connections and all dependents, and waits for the connector's goroutines. A second Close does nothing.
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

// end marks the client as closed: it starts no more attempts or functions. It returns the open connections, and false
// if the client was already closed.
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
