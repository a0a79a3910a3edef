package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// resumeAtOnce is how many requests that take something up again are in flight.
	resumeAtOnce = 64
	// resumeSilence is how long an owner may take for the next answer to any of them: a client may have so much to take
	// up that no time for all of it would be right.
	resumeSilence = 5 * time.Second
)

var errSilent = fmt.Errorf("%w: the owner has not answered for %v", status.ErrUnavailable, resumeSilence)

// resume takes up on a new connection what handles, watchers and references had on the old one. An error is of the
// connection: who has been on it by then is told that it is lost.
func (c *Client) resume(l *link.Link) error {
	defer l.News.Expect()()
	err := allWhileAnswered(c.ctx, c.toResume(l))
	if err == nil {
		err = l.Reason()
	}
	if err != nil {
		l.Cut()
		c.ownerLost(l)
		c.referencesLost(l)
	}
	return err
}

// catchUp takes up what became known to the client while the connection was made, too late for resume and too early to
// find it.
func (c *Client) catchUp(l *link.Link) {
	if jobs := c.toResume(l); len(jobs) > 0 {
		c.onNext(func(_ context.Context, l *link.Link) error {
			defer l.News.Expect()()
			return allWhileAnswered(c.ctx, jobs)
		})
	}
}

// toResume is what is to be taken up on a connection.
func (c *Client) toResume(l *link.Link) []func(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var jobs []func(context.Context) error
	for w := range c.watchers {
		if !w.on(l) {
			jobs = append(jobs, func(ctx context.Context) error { return c.resumeWatcher(ctx, l, w) })
		}
	}
	for h := range c.handles {
		if !h.settledOn(l) {
			jobs = append(jobs, func(ctx context.Context) error { return c.resumeHandle(ctx, l, h) })
		}
	}
	for _, r := range c.refs.all() {
		if r.heldOn() != l {
			jobs = append(jobs, func(ctx context.Context) error { return c.resumeReference(ctx, l, r) })
		}
	}
	return jobs
}

// allWhileAnswered does all jobs, some at once, until one fails or none ends for too long.
func allWhileAnswered(ctx context.Context, jobs []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(resumeSilence, func() { cancel(errSilent) })
	defer silence.Stop()
	var begun, failed atomic.Int64
	var work sync.WaitGroup
	for range min(len(jobs), resumeAtOnce) {
		work.Go(func() {
			for i := begun.Add(1) - 1; int(i) < len(jobs); i = begun.Add(1) - 1 {
				if err := jobs[i](ctx); err != nil {
					cancel(err) // the first cause stays
					failed.Add(1)
					return
				}
				silence.Reset(resumeSilence)
			}
		})
	}
	work.Wait()
	if failed.Load() > 0 {
		return context.Cause(ctx)
	}
	return nil
}

// refused reports whether the owner has answered, and did not want to. Whatever that was about, the connection is in
// order.
func refused(err error) bool {
	var remote *message.Error
	return errors.As(err, &remote) && !errors.Is(err, status.ErrUnavailable)
}

// resumeWatcher takes up a watch. If the owner refuses it, the watcher ends.
func (c *Client) resumeWatcher(ctx context.Context, l *link.Link, w *Watcher) error {
	err := w.begin(ctx, l, true)
	if w.ended() { // closed meanwhile: it ends alone
		return nil
	}
	if !refused(err) {
		return err
	}
	c.mu.Lock()
	delete(c.watchers, w)
	c.mu.Unlock()
	w.end(err)
	return nil
}

// resumeHandle takes the lease of a handle again, or finds that the owner does not know its version any more. If the
// owner refuses it, the handle goes on without a lease.
func (c *Client) resumeHandle(ctx context.Context, l *link.Link, h *attachment) error {
	if h.settledOn(l) {
		return nil
	}
	if l.Server.Server != h.server {
		h.orphan()
		return nil
	}
	ask := message.Acquire{Name: h.name, Version: h.version}
	id, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpAcquire, Body: ask, Event: h.eventsOf(l), Late: l.ReleaseLate})
	switch {
	case errors.Is(err, status.ErrNotFound):
		h.orphan()
		return nil
	case refused(err):
		c.log.Warn("a lease was not taken again", "name", h.name, "version", h.version, "error", err)
		return nil
	case err != nil:
		return err
	}
	defer frame.Files.Close()
	var got message.Acquired
	if err := link.DecodeAnswer(frame, &got); err != nil {
		return err
	}
	if !h.leased(l, got.Lease, id) {
		l.Release(got.Lease, id)
	}
	return nil
}

// resumeReference takes a reference again, or finds that its object is gone, or not to be had. News of objects is
// expected meanwhile.
func (c *Client) resumeReference(ctx context.Context, l *link.Link, r *reference) error {
	switch {
	case r.heldOn() == l:
		return nil
	case r.server != l.Server.Server:
		c.lose(r, status.StaleServerMismatch)
		return nil
	}
	if r.reason() != nil { // it was given back meanwhile
		return nil
	}
	if err := c.watchObjects(ctx, l); err != nil {
		return err
	}
	_, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpObjectRefer, Body: message.Object{ID: r.id}})
	switch {
	case errors.Is(err, status.ErrStale), refused(err):
		c.lose(r, status.StaleObjectMissing)
		return nil
	case err != nil:
		return err
	}
	var again message.ObjectInfo
	err = link.DecodeAnswer(frame, &again)
	frame.Files.Close()
	if err != nil {
		return err
	}
	switch {
	case !r.attach(l, again.Token):
		l.ReleaseObject(r.id, again.Token)
	case l.News.HeardOf(r.id): // before it was known to be held here
		c.lose(r, status.StaleObjectMissing)
	}
	return nil
}

// ownerLost tells handles and watchers that the connection is gone.
func (c *Client) ownerLost(l *link.Link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for h := range c.handles {
		h.detach(l)
	}
	for w := range c.watchers {
		w.lost(l)
	}
}

// referencesLost tells the references of a connection that it has ended. Where its owner has said that it is leaving,
// their objects are gone too.
func (c *Client) referencesLost(l *link.Link) {
	left := l.Left()
	for _, r := range c.references() {
		switch {
		case r.heldOn() != l:
		case left:
			c.lose(r, status.StaleObjectMissing)
		default:
			r.moveTo(nil)
		}
	}
}
