package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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

// The table of a new connection is sent with at most resumeAtOnce unanswered requests. Requests of callers wait until all
// records are answered, or until no answer arrives for resumeSilence, or for offerPatience if only offers are unanswered.
const (
	resumeAtOnce  = 64
	resumeSilence = 5 * time.Second
	offerPatience = 2 * time.Second
)

var errUnresponsive = fmt.Errorf("%w: the owner has not answered for %v", status.ErrUnavailable, resumeSilence)

// Connector keeps a client connected while a request waits or its table has records. Its methods are safe for concurrent
// use.
type Connector struct {
	Config

	ctx  context.Context // ends with the client
	stop context.CancelFunc
	live atomic.Pointer[Conn] // conn, for requests on a warm connection; set with mu held
	work sync.WaitGroup       // attempts with their connections, and functions started by Go; added to under mu while not closed

	mu         sync.Mutex
	conn       *Conn              // used for requests; nil while the client is not connected
	conns      map[*Conn]struct{} // have not ended: conn, and connections whose owners have said goodbye and still answer
	table      map[uint64]*record // by id
	lastRecord uint64
	feed       *feed                              // sends the table; nil without a connection
	objects    map[string]map[*Reference]struct{} // live references by object
	attempt    *attempt
	failed     int  // consecutive failed attempts
	eager      bool // dial until connected once, even if the table is empty
	dials      Dials
	since      time.Time // of the first failed attempt since the last connection; zero without one
	warned     bool      // the log has that no owner is reachable
	closed     bool
	notified   State // state at the last change notification
	changed    Signal
}

// newConnector returns a connector that is not connected yet.
func newConnector(c Config) *Connector {
	n := &Connector{Config: c, conns: map[*Conn]struct{}{}, table: map[uint64]*record{}, objects: map[string]map[*Reference]struct{}{}}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// DialEagerly makes the connector dial until it has been connected once, even if its table is empty.
func (c *Connector) DialEagerly() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.eager = true
	c.dialLocked()
}

// attempt is one attempt to connect. All callers that need the connection share it.
type attempt struct {
	now  chan struct{} // closed to skip the pause before it
	done chan struct{} // closed when the attempt has ended
	last error         // of the attempt before it, if that failed because no owner serves
	conn *Conn
	err  error
}

// silent is the time without an owner after which the log has a warning.
const silent = 2 * time.Second

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
		if a.last != nil {
			return nil, fmt.Errorf("%w: %w", a.last, ended.Cause(ctx))
		}
		return nil, fmt.Errorf("%w: %w", status.ErrUnavailable, ended.Cause(ctx))
	}
}

// connOrAttempt returns the live connection. Without one it returns the attempt to connect, and starts it if none runs.
func (c *Connector) connOrAttempt(now bool) (*Conn, *attempt, error) {
	if conn := c.live.Load(); conn != nil && conn.reason() == nil {
		return conn, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, c.closedError()
	}
	if c.liveLocked() {
		return c.conn, nil, nil
	}
	a := c.attemptLocked()
	if now {
		select {
		case <-a.now:
		default:
			close(a.now)
		}
	}
	return nil, a, nil
}

// liveLocked reports whether there is a connection for requests.
func (c *Connector) liveLocked() bool { return c.conn != nil && c.conn.reason() == nil }

// useLocked makes a connection the one for requests; nil for none.
func (c *Connector) useLocked(conn *Conn) {
	c.conn = conn
	c.live.Store(conn)
}

// attemptLocked returns the attempt to connect, and starts it if none runs.
func (c *Connector) attemptLocked() *attempt {
	if c.attempt == nil {
		c.attempt = &attempt{now: make(chan struct{}), done: make(chan struct{})}
		if !c.since.IsZero() && errors.Is(c.dials.Err, status.ErrUnavailable) {
			c.attempt.last = c.dials.Err
		}
		c.noteLocked()
		c.work.Add(1)
		go c.run(c.attempt, c.failed)
	}
	return c.attempt
}

// dialLocked starts an attempt if a record needs a connection or the eager first connection is missing.
func (c *Connector) dialLocked() {
	if !c.closed && !c.liveLocked() && (c.eager || len(c.table) > 0) {
		c.attemptLocked()
	}
}

// closedError returns the error of requests after Close.
func (c *Connector) closedError() error {
	if c.DialSelf != nil {
		return status.ErrServerClosing
	}
	return status.Closed("the client of " + c.Socket)
}

// run makes one attempt, after a pause that grows with the number of failures before it, and serves its connection. It
// dials again at once if the owner said goodbye meanwhile, because its successor may listen.
func (c *Connector) run(a *attempt, failures int) {
	defer c.work.Done()
	c.pause(a, failures)
	var err error
	for range maxRepeats {
		var conn *Conn
		if conn, err = c.open(); err == nil {
			err = c.serve(a, conn, failures)
		}
		if !errors.Is(err, errOwnerLeft) {
			break
		}
	}
	if err != nil && c.attemptFailed(a, err) {
		c.Log.Warn("no owner is reachable; trying again", "socket", c.Socket, "error", err)
	}
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

// open dials and exchanges hellos.
func (c *Connector) open() (*Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	conn, err := c.Config.open(ctx)
	if err == nil {
		go conn.read()
	}
	return conn, err
}

// attemptFailed ends a failed attempt. It starts the next one if a record needs a connection. It returns true once in each outage,
// when no owner has been reachable for some time.
func (c *Connector) attemptFailed(a *attempt, err error) (warn bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempt = nil
	c.failed++
	if c.since.IsZero() {
		c.since = time.Now()
	}
	warn = !c.warned && !c.closed && time.Since(c.since) >= silent
	c.warned = c.warned || warn
	c.dials.failed(err)
	c.noteLocked()
	if a.err = err; c.closed { // the attempt failed because of Close
		a.err = c.closedError()
	}
	c.dialLocked()
	close(a.done)
	return warn
}

// succeed makes the connection of an attempt available to requests. It returns false if the client was closed.
func (c *Connector) succeed(a *attempt, conn *Conn) bool {
	told := false
	defer func() { // after the unlock
		if told {
			c.Log.Warn("an owner is reachable", "socket", c.Socket)
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.attempt, c.failed, c.eager = nil, 0, false
	c.since, told, c.warned = time.Time{}, c.warned, false
	c.dials.succeeded()
	a.conn = conn
	c.useLocked(conn)
	c.noteLocked()
	close(a.done)
	return true
}

// serve sends the table on a new connection and completes the attempt. It returns when the connection has answered its
// last request. It fails if the connection ends before the attempt is complete. A connection that ends soon counts as one
// more failed attempt.
func (c *Connector) serve(a *attempt, conn *Conn, failures int) error {
	f := newFeed(conn)
	if !c.attach(f) {
		conn.hangUp()
		return c.closedError()
	}
	var began time.Time
	c.sendTable(f, func() bool { began = time.Now(); return c.succeed(a, conn) })
	c.mu.Lock()
	c.lostLocked(conn)
	used := a.conn == conn
	if used && time.Since(began) < lastBackoff {
		c.failed = max(c.failed, failures+1)
	}
	if c.conn == conn {
		c.useLocked(nil)
		c.noteLocked()
	}
	if used {
		c.dialLocked()
	}
	c.mu.Unlock()
	if !used {
		conn.transport.Close()
	}
	conn.wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
	if used {
		return nil
	}
	return conn.reason()
}

// sendTable sends the records of the table until the connection ends: all at first, and later those that are added. It
// calls succeed once, when requests of callers may follow.
func (c *Connector) sendTable(f *feed, succeed func() bool) {
	ctx, cancel := context.WithCancelCause(c.ctx) // of the requests before the attempt succeeds
	defer cancel(nil)
	silence := time.AfterFunc(resumeSilence, func() { cancel(errUnresponsive) })
	defer silence.Stop()
	begun, silent := false, ctx.Done()
	var pause <-chan time.Time // before requests that the owner could not answer
	for answers, pauses := -1, 0; f.conn.reason() == nil; {
		for c.sendNext(ctx, f) {
		}
		c.mu.Lock()
		open, offers, later, progress := f.open, f.offers, len(f.later) > 0, f.answers != answers
		answers = f.answers
		c.mu.Unlock()
		switch {
		case begun:
		case open+offers == 0, ctx.Err() != nil:
			if begun = true; !succeed() {
				return
			}
			ctx, silent = connContext{c.ctx, f.conn}, nil
		case progress && open == 0:
			silence.Reset(offerPatience)
		case progress:
			silence.Reset(resumeSilence)
		}
		if later && pause == nil {
			pauses++
			pause = time.After(backoff(pauses))
		}
		select {
		case <-f.conn.over:
		case <-f.wake:
		case <-silent:
		case <-pause:
			pause = nil
			c.retry(f)
		}
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

// connContext is a context that ends when a connection takes no more requests.
type connContext struct {
	context.Context
	conn *Conn
}

// Done implements [context.Context].
func (c connContext) Done() <-chan struct{} { return c.conn.over }

// Err implements [context.Context].
func (c connContext) Err() error { return c.conn.reason() }

// Close ends the connections and all records, and waits for the connector's goroutines. A second Close does nothing.
func (c *Connector) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	conns, table := c.conns, c.table
	c.closed, c.conns, c.table, c.feed = true, nil, nil, nil
	c.useLocked(nil)
	c.changed.End()
	c.stop()
	c.mu.Unlock()
	// The connections end first: the functions of an offer are then cancelled without a message to the owner, and
	// their callers get ErrWorkerGone instead of an error of the cancelled function.
	for conn := range conns {
		conn.hangUp()
	}
	c.mu.Lock()
	for _, r := range table {
		c.endLocked(r, errClientClosed)
	}
	c.mu.Unlock()
	c.work.Wait()
}

// errClientClosed is why the records of a closed client have ended.
var errClientClosed = status.Closed("the client")
