package reference

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// lose ends a reference whose object no longer exists.
func (t *Table) lose(r *Reference, reason status.StaleReason) {
	t.drop(r)
	r.stale(reason, "")
}

// drop removes a reference.
func (t *Table) drop(r *Reference) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(r)
}

// Keep registers a reference that was received on l. If l has ended, and the reference with it, Keep requests the
// reference again.
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
	if !live { // Lost may have run before the reference was registered
		r.detach(l)
	}
	switch {
	case l.ObjectEvents.WasDestroyed(r.ID), !live && l.OwnerLeft():
		t.lose(r, status.StaleObjectMissing)
	case !live:
		t.conn.OnNext(r.resume)
	}
	return r
}

// giveBack releases a live reference. If wait is set, it waits for the answer.
func (t *Table) giveBack(ctx context.Context, r *Reference, wait bool) (bool, error) {
	t.drop(r)
	l, token := r.held()
	switch {
	case l == nil: // the connection ended, which has released it
		return false, nil
	case !wait && t.conn.DialSelf == nil:
		l.ReleaseObject(r.ID, token)
		return true, nil
	}
	_, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpObjectRelease, Body: link.ReleaseOne(r.ID, token)})
	if err != nil {
		if !wait { // the end of the connection releases it
			return false, nil
		}
		if token != 0 { // Record the release even if the request failed. Releasing a token again has no effect.
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

// Watch subscribes to the owner's events of destroyed objects, once for each connection. Objects that are requested
// afterwards are covered.
func (t *Table) Watch(ctx context.Context, l *link.Link) error {
	return l.ObjectEvents.Once(ctx, func() error {
		ask := link.Request{Op: message.OpObjectWatch, Body: message.WatchObjects{}, Item: func(frame wire.Frame) error { return t.objectGone(l, frame) }}
		_, err := l.Start(ctx, ask, func(frame wire.Frame, _ error) { frame.Files.Close() })
		return err
	})
}

// objectGone handles the event of a destroyed object. It runs in the goroutine that reads the connection and takes
// ownership of the frame.
func (t *Table) objectGone(l *link.Link, frame wire.Frame) error {
	defer frame.Files.Close()
	var gone message.ObjectGone
	if err := message.Unmarshal(frame.Body, &gone); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	if err := l.ObjectEvents.NoteDestroyed(gone.ID); err != nil { // before the lookup below: a reference that is registered later checks these events
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
