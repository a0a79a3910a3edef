package reference

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// lose ends a reference whose object is gone.
func (t *Table) lose(r *Reference, reason status.StaleReason) {
	t.drop(r)
	r.stale(reason, "")
}

// drop forgets a reference.
func (t *Table) drop(r *Reference) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(r)
}

// Keep makes the reference that came over l known to the client. Where the connection has ended meanwhile, and
// the reference with it, it is taken again.
func (t *Table) Keep(l *link.Link, obj *message.ObjectRef) *Reference {
	r := newReference(t, obj)
	r.link = l
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		r.end(ErrReleased)
		return r
	}
	t.addLocked(r)
	t.mu.Unlock()
	live := t.conn.Current() == l
	if !live { // Lost may have been called before the reference was there
		r.detach(l)
	}
	switch {
	case l.ObjectEvents.HeardOf(r.ID), !live && l.Left():
		t.lose(r, status.StaleObjectMissing)
	case r.spentIn(&l.ObjectEvents):
		t.drop(r)
		r.end(ErrReleased)
	case !live:
		t.conn.OnNext(r.resume)
	}
	return r
}

// giveBack gives a live reference back, waiting for the answer or not.
func (t *Table) giveBack(ctx context.Context, r *Reference, wait bool) (bool, error) {
	t.drop(r)
	l, token := r.held()
	switch {
	case l == nil: // it went with its connection
		return false, nil
	case !wait && t.conn.DialSelf == nil:
		l.ReleaseObject(r.ID, token)
		return true, nil
	}
	_, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpObjectRelease, Body: link.ReleaseOne(r.ID, token)})
	if err != nil {
		if !wait { // the reference goes with its connection
			return false, nil
		}
		if token != 0 { // whether it went back or not: asking twice is the same as asking once, and nobody else asks
			l.ReleaseObject(r.ID, token)
		}
		return false, fmt.Errorf("release object %s: %w", r.ID, err)
	}
	defer frame.Files.Close()
	var got message.ObjectsReleased
	if err := link.DecodeAnswer(frame, &got); err != nil {
		return false, err
	}
	return len(got.Objects) == 1 && got.Objects[0].Released, nil
}

// Given ends the references of this process that the rows say were given back.
func (t *Table) Given(rows []message.ObjectReleased) {
	spent := tokensOf(rows)
	for _, l := range t.conn.Live() { // before looking for references: those that are not found look here
		l.ObjectEvents.NoteSpent(spent)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(spent)
}

// Watch asks the owner, once a connection, to tell of objects that it destroys. Requests that are sent
// afterwards are heard of.
func (t *Table) Watch(ctx context.Context, l *link.Link) error {
	return l.ObjectEvents.Once(ctx, func() error {
		ask := link.Request{Op: message.OpObjectWatch, Body: message.WatchObjects{}, Item: func(frame wire.Frame) error { return t.objectGone(l, frame) }}
		_, err := l.Start(ctx, ask, func(frame wire.Frame, _ error) { frame.Files.Close() })
		return err
	})
}

// objectGone is called by whoever reads the connection with an object that was destroyed. It takes the frame.
func (t *Table) objectGone(l *link.Link, frame wire.Frame) error {
	defer frame.Files.Close()
	var gone message.ObjectGone
	if err := message.Unmarshal(frame.Body, &gone); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	if err := l.ObjectEvents.Note(gone.ID); err != nil { // before looking for references: those that are not found look here
		return err
	}
	for _, r := range t.to(gone.ID) {
		if r.heldOn() == l {
			r.stale(status.StaleObjectMissing, gone.Reason)
			t.lose(r, status.StaleObjectMissing)
		}
	}
	return nil
}
