package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// references are the live references of the client.
func (h *holdings) references() []*reference {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refs.all()
}

// referencesTo are those to one object.
func (h *holdings) referencesTo(id string) []*reference {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refs.of(id)
}

// lose ends a reference whose object is gone.
func (h *holdings) lose(r *reference, reason status.StaleReason) {
	h.drop(r)
	r.stale(reason, "")
}

// drop forgets a reference.
func (h *holdings) drop(r *reference) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refs.remove(r)
}

// keepReference makes the reference that came over l known to the client. Where the connection has ended meanwhile, and
// the reference with it, it is taken again.
func (h *holdings) keepReference(l *link.Link, obj *message.ObjectRef) *reference {
	r := newReference(h, obj)
	r.link = l
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		r.end(errReleased)
		return r
	}
	h.refs.add(r)
	h.mu.Unlock()
	live := h.conn.current() == l
	if !live { // lost may have been called before the reference was there
		r.detach(l)
	}
	switch {
	case l.ObjectEvents.HeardOf(r.id), !live && l.Left():
		h.lose(r, status.StaleObjectMissing)
	case r.spentIn(&l.ObjectEvents):
		h.drop(r)
		r.end(errReleased)
	case !live:
		h.conn.onNext(func(ctx context.Context, next *link.Link) error {
			defer next.ObjectEvents.Expect()()
			return h.resumeReference(ctx, next, r)
		})
	}
	return r
}

// returnReference gives a live reference back, waiting for the answer or not.
func (h *holdings) returnReference(ctx context.Context, r *reference, wait bool) (bool, error) {
	h.drop(r)
	l, token := r.held()
	switch {
	case l == nil: // it went with its connection
		return false, nil
	case !wait && h.conn.dialSelf == nil:
		l.ReleaseObject(r.id, token)
		return true, nil
	}
	_, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpObjectRelease, Body: link.ReleaseOne(r.id, token)})
	if err != nil {
		if !wait { // the reference goes with its connection
			return false, nil
		}
		if token != 0 { // whether it went back or not: asking twice is the same as asking once, and nobody else asks
			l.ReleaseObject(r.id, token)
		}
		return false, fmt.Errorf("release object %s: %w", r.id, err)
	}
	defer frame.Files.Close()
	var got message.ObjectsReleased
	if err := link.DecodeAnswer(frame, &got); err != nil {
		return false, err
	}
	return len(got.Objects) == 1 && got.Objects[0].Released, nil
}

// given ends the references of this process that the rows say were given back.
func (h *holdings) given(rows []message.ObjectReleased) {
	spent := tokensOf(rows)
	for _, l := range h.conn.live() { // before looking for references: those that are not found look here
		l.ObjectEvents.NoteSpent(spent)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refs.end(spent)
}

// watchObjects asks the owner, once a connection, to tell of objects that it destroys. Requests that are sent
// afterwards are heard of.
func (h *holdings) watchObjects(ctx context.Context, l *link.Link) error {
	return l.ObjectEvents.Once(ctx, func() error {
		ask := link.Request{Op: message.OpObjectWatch, Body: message.WatchObjects{}, Item: func(frame wire.Frame) error { return h.objectGone(l, frame) }}
		_, err := l.Start(ctx, ask, func(frame wire.Frame, _ error) { frame.Files.Close() })
		return err
	})
}

// objectGone is called by whoever reads the connection with an object that was destroyed. It takes the frame.
func (h *holdings) objectGone(l *link.Link, frame wire.Frame) error {
	defer frame.Files.Close()
	var gone message.ObjectGone
	if err := message.Unmarshal(frame.Body, &gone); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	if err := l.ObjectEvents.Note(gone.ID); err != nil { // before looking for references: those that are not found look here
		return err
	}
	for _, r := range h.referencesTo(gone.ID) {
		if r.heldOn() == l {
			r.stale(status.StaleObjectMissing, gone.Reason)
			h.lose(r, status.StaleObjectMissing)
		}
	}
	return nil
}
