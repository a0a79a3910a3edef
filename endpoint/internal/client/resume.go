package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// resumeAtOnce is the maximum number of resume requests in flight.
	resumeAtOnce = 64
	// resumeSilence is the maximum time between answers to resume requests. There is no limit for all of them, because
	// their number is not limited.
	resumeSilence = 5 * time.Second
)

var errUnresponsive = fmt.Errorf("%w: the owner has not answered for %v", status.ErrUnavailable, resumeSilence)

// dependent is an object that a client keeps across connections: a lease, a reference, a watcher or an offer. The
// methods are called concurrently and without the connector's lock.
type dependent interface {
	// needsResume reports whether the object must be resumed on conn. It returns false if conn already has it.
	needsResume(conn *Conn) bool
	// resume resumes the object on conn. If it fails, the connection is closed.
	resume(ctx context.Context, conn *Conn) error
	// lost notifies the object that a connection has ended. The object may be on another connection.
	lost(conn *Conn)
	// end ends the object because the client was closed.
	end()
}

// add adds an object, which is then resumed on each new connection. It returns false if the client was closed.
func (c *Connector) add(d dependent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.dependents[d] = struct{}{}
	return true
}

// remove removes an object that has ended.
func (c *Connector) remove(d dependent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.dependents, d)
}

// All returns the client's objects of one type.
func All[T dependent](c *Connector) (list []T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for d := range c.dependents {
		if d, ok := d.(T); ok {
			list = append(list, d)
		}
	}
	return list
}

func isOffer(d dependent) bool {
	_, ok := d.(*Offer)
	return ok
}

// toResume returns the jobs that resume the objects on conn that need it, all offers or all others.
func (c *Connector) toResume(conn *Conn, offers bool) (jobs []func(context.Context) error) {
	for _, d := range All[dependent](c) {
		if isOffer(d) == offers && d.needsResume(conn) {
			jobs = append(jobs, func(ctx context.Context) error { return d.resume(ctx, conn) })
		}
	}
	return jobs
}

// lost notifies all objects that a connection has ended.
func (c *Connector) lost(conn *Conn) {
	for _, d := range All[dependent](c) {
		d.lost(conn)
	}
}

// resume resumes the dependents on a new connection. If that fails, it closes the connection and notifies the
// dependents that were already resumed. Offers are last, because the owner's program may take long to decide about them.
func (c *Connector) resume(conn *Conn) error {
	err := allWhileAnswered(c.ctx, c.toResume(conn, false))
	if err == nil {
		err = allWhileAnswered(c.ctx, c.toResume(conn, true))
	}
	if err == nil {
		err = conn.reason()
	}
	if err != nil {
		conn.cut()
		c.lost(conn)
	}
	return err
}

// catchUp resumes dependents that were added after resume began and before the new connection was visible to them.
func (c *Connector) catchUp(conn *Conn) {
	if jobs := append(c.toResume(conn, false), c.toResume(conn, true)...); len(jobs) > 0 {
		c.Go(func() { c.cutAfter(conn, allWhileAnswered(c.ctx, jobs)) })
	}
}

// allWhileAnswered runs all jobs, at most resumeAtOnce at a time. It fails if a job fails or if no job completes for
// resumeSilence.
func allWhileAnswered(ctx context.Context, jobs []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(resumeSilence, func() { cancel(errUnresponsive) })
	defer silence.Stop()
	var begun, failed atomic.Int64
	var work sync.WaitGroup
	for range min(len(jobs), resumeAtOnce) {
		work.Go(func() {
			for i := begun.Add(1) - 1; int(i) < len(jobs); i = begun.Add(1) - 1 {
				if err := jobs[i](ctx); err != nil {
					cancel(err) // the first cause wins
					failed.Add(1)
					return
				}
				silence.Reset(resumeSilence)
			}
		})
	}
	work.Wait()
	if failed.Load() > 0 {
		return ended.Cause(ctx)
	}
	return nil
}

// refused reports whether the owner answered with an error other than ErrUnavailable. The connection is then still
// good.
func refused(err error) bool {
	var remote *message.Error
	return errors.As(err, &remote) && !errors.Is(err, status.ErrUnavailable)
}
