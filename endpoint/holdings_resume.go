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

// resume implements dependents: it takes up on a new connection what handles, watchers and references had on the old
// one. After an error, those that are on the new one already hear that it is lost.
func (h *holdings) resume(l *link.Link) error {
	defer l.ObjectEvents.Expect()()
	err := allWhileAnswered(h.conn.ctx, h.toResume(l))
	if err == nil {
		err = l.Reason()
	}
	if err != nil {
		l.Cut()
		h.lost(l)
	}
	return err
}

// catchUp implements dependents: it takes up what was registered while the connection was made, too late for resume and
// too early to find the connection.
func (h *holdings) catchUp(l *link.Link) {
	if jobs := h.toResume(l); len(jobs) > 0 {
		h.conn.onNext(func(_ context.Context, l *link.Link) error {
			defer l.ObjectEvents.Expect()()
			return allWhileAnswered(h.conn.ctx, jobs)
		})
	}
}

// toResume is what is to be taken up on a connection.
func (h *holdings) toResume(l *link.Link) []func(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var jobs []func(context.Context) error
	for w := range h.watchers {
		if !w.on(l) {
			jobs = append(jobs, func(ctx context.Context) error { return h.resumeWatcher(ctx, l, w) })
		}
	}
	for o := range h.offers {
		if !o.on(l) {
			jobs = append(jobs, func(ctx context.Context) error { return h.resumeOffer(ctx, l, o) })
		}
	}
	for a := range h.handles {
		if !a.settledOn(l) {
			jobs = append(jobs, func(ctx context.Context) error { return h.resumeHandle(ctx, l, a) })
		}
	}
	for _, r := range h.refs.all() {
		if r.heldOn() != l {
			jobs = append(jobs, func(ctx context.Context) error { return h.resumeReference(ctx, l, r) })
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

// resumeOffer makes an offer again. If the owner refuses it, the offer ends.
func (h *holdings) resumeOffer(ctx context.Context, l *link.Link, o *Offer) error {
	err := o.begin(ctx, l)
	if !refused(err) && !errors.Is(err, errNoOffers) {
		return err
	}
	h.log.Warn("endpoints were not offered again", "error", err)
	h.forgetOffer(o)
	o.end(err)
	return nil
}

// resumeWatcher takes up a watch. If the owner refuses it, the watcher ends.
func (h *holdings) resumeWatcher(ctx context.Context, l *link.Link, w *Watcher) error {
	err := w.begin(ctx, l, true)
	if w.ended() { // closed meanwhile: it ends alone
		return nil
	}
	if !refused(err) {
		return err
	}
	h.forgetWatcher(w)
	w.end(err)
	return nil
}

// resumeHandle takes the lease of a handle again, or finds that the owner does not know its version any more. If the
// owner refuses it, the handle goes on without a lease.
func (h *holdings) resumeHandle(ctx context.Context, l *link.Link, a *leaseState) error {
	if a.settledOn(l) {
		return nil
	}
	if l.Server.Server != a.server {
		a.orphan()
		return nil
	}
	ask := message.Acquire{Name: a.name, Version: a.version}
	id, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpAcquire, Body: ask, Event: a.eventsOf(l), Late: l.ReleaseLate})
	switch {
	case errors.Is(err, status.ErrNotFound):
		a.orphan()
		return nil
	case refused(err):
		h.log.Warn("a lease was not taken again", "name", a.name, "version", a.version, "error", err)
		return nil
	case err != nil:
		return err
	}
	defer frame.Files.Close()
	var got message.Acquired
	if err := link.DecodeAnswer(frame, &got); err != nil {
		return err
	}
	if !a.leased(l, got.Lease, id) {
		l.Release(got.Lease, id)
	}
	return nil
}

// resumeReference takes a reference again, or finds that its object is gone, or not to be had. News of objects is
// expected meanwhile.
func (h *holdings) resumeReference(ctx context.Context, l *link.Link, r *reference) error {
	switch {
	case r.heldOn() == l:
		return nil
	case r.server != l.Server.Server:
		h.lose(r, status.StaleServerMismatch)
		return nil
	}
	if r.reason() != nil { // it was given back meanwhile
		return nil
	}
	if err := h.watchObjects(ctx, l); err != nil {
		return err
	}
	_, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpObjectRefer, Body: message.Object{ID: r.id}})
	switch {
	case errors.Is(err, status.ErrStale), refused(err):
		h.lose(r, status.StaleObjectMissing)
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
	case l.ObjectEvents.HeardOf(r.id): // before it was known to be held here
		h.lose(r, status.StaleObjectMissing)
	}
	return nil
}
