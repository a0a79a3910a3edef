package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// maxRepeats is the number of times that a request is repeated if it does not wait for an owner.
const maxRepeats = 3

// ForRequest returns the live connection, or dials. It waits for an owner until the deadline of ctx. If ctx has no
// deadline and Config.Wait is not set, it fails after one attempt.
func (c *Connector) ForRequest(ctx context.Context) (*Conn, error) {
	return c.connect(ctx, c.waits(ctx))
}

// waits reports whether a request with ctx waits for an owner.
func (c *Connector) waits(ctx context.Context) bool {
	_, limited := ctx.Deadline()
	return limited || c.Wait
}

func (c *Connector) connect(ctx context.Context, wait bool) (*Conn, error) {
	if wait {
		return c.Connected(ctx)
	}
	return c.ConnectNow(ctx)
}

// Request sends a request and decodes the answer into out unless out is nil. It uses the connection of ForRequest.
func (c *Connector) Request(ctx context.Context, ask Request, out any) error {
	return c.repeat(ctx, c.waits(ctx), repeats(ask.Op), func(conn *Conn) error { return conn.request(ctx, ask, out) })
}

// repeats returns the rule by which a request is repeated: after a connection that ended before it was sent, and once
// after one that ended before the answer if the request changes nothing.
func repeats(op message.Op) func(error) bool {
	if !op.Repeatable() {
		return NotSent
	}
	lost := false
	return func(err error) bool {
		if NotSent(err) {
			return true
		}
		again := !lost && errors.Is(err, status.ErrUnavailable)
		lost = lost || again
		return again
	}
}

// RequestNow is Request that fails after one attempt to connect, even if ctx has a deadline.
func (c *Connector) RequestNow(ctx context.Context, ask Request, out any) error {
	return c.repeat(ctx, false, repeats(ask.Op), func(conn *Conn) error { return conn.request(ctx, ask, out) })
}

// onConn calls request with the connection of ForRequest. It calls it again with the next connection if the first one
// ended before anything was sent.
func (c *Connector) onConn(ctx context.Context, request func(*Conn) error) error {
	return c.repeat(ctx, c.waits(ctx), NotSent, request)
}

// establish calls begin until it succeeds, fails with an error other than [status.ErrUnavailable], or ctx ends. Use
// it for leases, watches and offers: they end with their connection, so a repeated request creates no duplicates. If
// wait is set, it waits for an owner; otherwise it uses the connection of ForRequest.
func (c *Connector) establish(ctx context.Context, wait bool, begin func(*Conn) error) error {
	unavailable := func(err error) bool { return errors.Is(err, status.ErrUnavailable) }
	return c.repeat(ctx, wait || c.waits(ctx), unavailable, begin)
}

// repeat makes a request, and repeats it after errors for which again returns true. It pauses before the second and
// later repetitions. Unless wait is set, it fails if no owner serves or after maxRepeats.
func (c *Connector) repeat(ctx context.Context, wait bool, again func(error) bool, request func(*Conn) error) error {
	for failures := 0; ; failures++ {
		conn, err := c.connect(ctx, wait)
		if err != nil {
			return err
		}
		err = request(conn)
		if err == nil || !again(err) || ctx.Err() != nil || !wait && failures == maxRepeats {
			return err
		}
		if failures > 0 && !c.sleep(ctx, backoff(failures)) {
			return fmt.Errorf("%w: %w", ended.Cause(ctx), err)
		}
	}
}

// sleep waits for d or until the client is closed. It returns false if ctx ends first.
func (c *Connector) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	case <-ctx.Done():
		return false
	}
	return true
}
