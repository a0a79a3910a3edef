package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// The pause before the next attempt starts at firstBackoff and doubles up to lastBackoff. Up to half of it is removed
// at random so that the clients of a restarted owner do not all dial at once. dialTimeout limits one attempt.
const (
	firstBackoff = 5 * time.Millisecond
	lastBackoff  = time.Second
	dialTimeout  = 5 * time.Second
)

// Connector keeps a client connected while a request waits or a dependent needs a connection. Its methods are safe for
// concurrent use.
type Connector struct {
	Config

	ctx  context.Context // ends with the client
	stop context.CancelFunc
	work sync.WaitGroup // attempts, connections, and functions started by Go and onNext; added to under mu while not closed

	mu         sync.Mutex
	conn       *Conn              // used for requests; nil while the client is not connected
	conns      map[*Conn]struct{} // have not ended: conn, and connections whose owners have said goodbye and still answer
	dependents map[dependent]struct{}
	attempt    *attempt
	failed     int  // consecutive failed attempts
	eager      bool // dial until connected once, even if no request or dependent needs a connection
	dials      Dials
	closed     bool
	notified   State // state at the last change notification
	changed    Signal
}

// newConnector returns a connector that is not connected yet.
func newConnector(c Config) *Connector {
	n := &Connector{Config: c, conns: map[*Conn]struct{}{}, dependents: map[dependent]struct{}{}}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

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
	conn *Conn
	err  error
}

// Connected returns the live connection, or dials until there is one or ctx ends.
func (c *Connector) Connected(ctx context.Context) (*Conn, error) {
	for {
		conn, a, err := c.connOrAttempt(false)
		if err != nil || conn != nil {
			return conn, err
		}
		conn, err = a.wait(ctx)
		if err == nil || !errors.Is(err, status.ErrUnavailable) || errors.Is(err, status.ErrServerClosed) {
			return conn, err
		}
		if cause := ended.Cause(ctx); cause != nil {
			if !errors.Is(err, cause) { // the attempt failed because the deadline passed
				err = fmt.Errorf("%w: %w", cause, err)
			}
			return nil, err
		}
	}
}

// ConnectNow returns the live connection, or makes a single attempt without a pause before it.
func (c *Connector) ConnectNow(ctx context.Context) (*Conn, error) {
	conn, a, err := c.connOrAttempt(true)
	if err != nil || conn != nil {
		return conn, err
	}
	return a.wait(ctx)
}

// wait returns the result of the attempt. If ctx ends first, the error wraps both [status.ErrUnavailable] and the cause
// of ctx.
func (a *attempt) wait(ctx context.Context) (*Conn, error) {
	select {
	case <-a.done:
		return a.conn, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", status.ErrUnavailable, ended.Cause(ctx))
	}
}

// connOrAttempt returns the live connection. Without one it returns the attempt to connect, and starts it if none runs.
func (c *Connector) connOrAttempt(now bool) (*Conn, *attempt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, c.closedError()
	}
	if c.conn != nil && c.conn.reason() == nil {
		return c.conn, nil, nil
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
	a.conn, a.err = c.open()
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
		a.conn.hangUp()
		a.conn, a.err = nil, c.closedError()
		return
	}
	c.eager = false
	c.dials.succeeded()
	c.conn = a.conn
	c.conns[a.conn] = struct{}{}
	c.noteLocked()
	c.work.Add(1)
	c.mu.Unlock()
	go c.superviseConn(a.conn, before)
	c.catchUp(a.conn)
}

// superviseConn handles the end of a conn: it notifies the dependents, starts the next attempt, and waits until the
// connection has answered its last requests. A connection that ends soon after it began counts as one more failed
// attempt.
func (c *Connector) superviseConn(conn *Conn, failed int) {
	defer c.work.Done()
	start := time.Now()
	<-conn.over
	c.mu.Lock()
	if c.conn == conn {
		c.conn = nil
		c.noteLocked()
	}
	if time.Since(start) < lastBackoff {
		c.failed = max(c.failed, failed+1)
	}
	c.mu.Unlock()
	c.lost(conn)
	c.keepTrying()
	conn.wait()
	c.mu.Lock()
	delete(c.conns, conn)
	c.mu.Unlock()
}

// keepTrying starts an attempt if a dependent needs a connection or the eager first connection is missing.
func (c *Connector) keepTrying() {
	c.mu.Lock()
	needed := !c.closed && (c.eager || len(c.dependents) > 0)
	c.mu.Unlock()
	if needed {
		_, _, _ = c.connOrAttempt(false)
	}
}

// open is [Connector.openOnce]. It dials again if the owner said goodbye meanwhile, because its successor may listen.
func (c *Connector) open() (conn *Conn, err error) {
	for range maxRepeats {
		if conn, err = c.openOnce(); !errors.Is(err, errOwnerLeft) {
			break
		}
	}
	return conn, err
}

// openOnce dials, exchanges hellos, and resumes the dependents.
func (c *Connector) openOnce() (*Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	conn, err := c.Config.open(ctx)
	if err != nil {
		return nil, err
	}
	go conn.read()
	if err := c.resume(conn); err != nil {
		return nil, err
	}
	return conn, nil
}

// onNext calls resume with the current connection. If there is none, it starts an attempt if needed; the new connection
// resumes all dependents. If resume fails, the connection is closed.
func (c *Connector) onNext(resume func(context.Context, *Conn) error) {
	conn := c.Current()
	if conn == nil {
		c.keepTrying()
		return
	}
	c.Go(func() { c.cutAfter(conn, resume(c.ctx, conn)) })
}

// cutAfter closes a connection on which a dependent could not be resumed, because only the next connection resumes it
// again. It does not close a connection that refuses new requests: that connection may still deliver answers, and the
// next one is being made.
func (c *Connector) cutAfter(conn *Conn, err error) {
	if err != nil && conn.reason() == nil && c.ctx.Err() == nil {
		conn.cut()
	}
}

// Go runs a short function in a goroutine that Close waits for. It does nothing after Close.
func (c *Connector) Go(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.work.Go(what)
}

// Current returns the connection for requests, or nil if the client is not connected.
func (c *Connector) Current() *Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// Close ends the connections and all dependents, and waits for the connector's goroutines. A second Close does nothing.
func (c *Connector) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	conns, dependents := c.conns, c.dependents
	c.closed, c.conn, c.conns, c.dependents = true, nil, nil, nil
	c.changed.End()
	c.stop()
	c.mu.Unlock()
	// The connections end first: the functions of an offer are then cancelled without a message to the owner, and
	// their callers get ErrWorkerGone instead of an error of the cancelled function.
	for conn := range conns {
		conn.hangUp()
	}
	for d := range dependents {
		d.end()
	}
	c.work.Wait()
}
