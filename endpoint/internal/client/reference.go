package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Reference is one reference to a managed object.
type Reference struct {
	// ID identifies the object at the server with the id Server, for the server's lifetime.
	ID, Server string

	of   *references
	done chan struct{} // closed when err is set

	mu    sync.Mutex
	conn  *Conn  // connection that has the reference; nil while the owner does not have it
	token uint64 // identifies the reference within the session
	err   error  // why the reference has ended
}

// references holds the live references of a client by object.
type references struct {
	*Connector

	mu   sync.Mutex
	byID map[string]map[*Reference]struct{}
}

var errReleased = status.Closed("the reference to an object")

// keep registers a reference that was received on conn. If conn has ended, and the reference with it, keep requests the
// reference again.
func (t *references) keep(conn *Conn, obj *message.ObjectRef) *Reference {
	r := &Reference{of: t, ID: obj.ID, Server: obj.Server, conn: conn, token: obj.Token, done: make(chan struct{})}
	if !t.add(r) {
		r.end()
		return r
	}
	live := t.Current() == conn
	if !live { // lost may have run before the reference was registered
		r.detach(conn)
	}
	switch {
	case conn.objects.wasDestroyed(r.ID), !live && conn.ownerLeft():
		r.stale(status.StaleObjectMissing, "")
	case !live:
		t.onNext(r.resume)
	}
	return r
}

// add registers a reference. It returns false if the client was closed.
func (t *references) add(r *Reference) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.Connector.add(r) {
		return false
	}
	if t.byID == nil {
		t.byID = map[string]map[*Reference]struct{}{}
	}
	if t.byID[r.ID] == nil {
		t.byID[r.ID] = map[*Reference]struct{}{}
	}
	t.byID[r.ID][r] = struct{}{}
	return true
}

// remove removes a reference.
func (t *references) remove(r *Reference) {
	t.Connector.remove(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	same := t.byID[r.ID]
	if delete(same, r); len(same) == 0 {
		delete(t.byID, r.ID)
	}
}

// watch subscribes to the owner's events of destroyed objects, once for each connection. Objects that are requested
// afterwards are covered.
func (t *references) watch(ctx context.Context, conn *Conn) error {
	return conn.objects.once(ctx, func() error {
		ask := Request{Op: message.OpObjectWatch, Body: message.WatchObjects{}, Item: func(frame wire.Frame) error { return t.objectGone(conn, frame) }}
		_, err := conn.start(ctx, ask, func(frame wire.Frame, _ error) { frame.Files.Close() })
		return err
	})
}

// objectGone handles the event of a destroyed object. It runs in the goroutine that reads the connection and takes
// ownership of the frame.
func (t *references) objectGone(conn *Conn, frame wire.Frame) error {
	defer frame.Files.Close()
	var gone message.ObjectGone
	if err := message.Unmarshal(frame.Body, &gone); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	if err := conn.objects.noteDestroyed(gone.ID); err != nil { // before the lookup below: a reference that is registered later checks these events
		return err
	}
	t.mu.Lock()
	same := slices.Collect(maps.Keys(t.byID[gone.ID]))
	t.mu.Unlock()
	for _, r := range same {
		if on, _ := r.held(); on == conn {
			r.stale(status.StaleObjectMissing, gone.Reason)
		}
	}
	return nil
}

// Done returns a channel that is closed when the reference ends.
func (r *Reference) Done() <-chan struct{} { return r.done }

// Err returns why the reference has ended, or nil while it is live.
func (r *Reference) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Release releases the reference. If wait is set, it waits for the answer. It returns false if the server released
// nothing: at the second call, or if the object no longer exists.
func (r *Reference) Release(ctx context.Context, wait bool) (bool, error) {
	if !r.endWith(errReleased) {
		return false, nil
	}
	r.of.remove(r)
	conn, token := r.held()
	switch {
	case conn == nil: // the connection ended, which has released it
		return false, nil
	case !wait && r.of.DialSelf == nil:
		conn.releaseObject(r.ID, token)
		return true, nil
	}
	var got message.ObjectsReleased
	if err := conn.request(ctx, Request{Op: message.OpObjectRelease, Body: releaseOne(r.ID, token)}, &got); err != nil {
		if !wait { // the end of the connection releases it
			return false, nil
		}
		if token != 0 { // Record the release even if the request failed. Releasing a token again has no effect.
			conn.releaseObject(r.ID, token)
		}
		return false, fmt.Errorf("release object %s: %w", r.ID, err)
	}
	return len(got.Objects) == 1 && got.Objects[0].Released, nil
}

// Collected is called when the value became unreachable without Close. It releases the reference, unless memory of the
// value may be in use. In that case it reports a leak; what and name describe its origin.
func (r *Reference) Collected(leak *driver.Leak, what, name string) {
	r.of.Go(func() {
		log := r.of.Log.With("object", r.ID, what, name, "server", r.Server)
		switch {
		case r.Err() != nil:
		case leak != nil:
			driver.ReportLeak(*leak)
			log.Warn("reference to a managed object not closed; it is kept because a slice or address of its memory may be in use")
		default:
			_, _ = r.Release(context.Background(), false)
			log.Warn("reference to a managed object not closed")
		}
	})
}

// endWith ends the reference with err. It returns false if it has already ended.
func (r *Reference) endWith(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false
	}
	r.err = err
	close(r.done)
	return true
}

// stale ends the reference because its object no longer exists. detail is the server's explanation.
func (r *Reference) stale(reason string, detail string) {
	r.of.remove(r)
	r.endWith(&status.StaleError{ObjectID: r.ID, ServerID: r.Server, Reason: reason, Detail: detail})
}

// end implements [dependent].
func (r *Reference) end() { r.endWith(errReleased) }

// held returns the connection that has the reference, or nil, and its token there.
func (r *Reference) held() (*Conn, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conn, r.token
}

// needsResume implements [dependent].
func (r *Reference) needsResume(conn *Conn) bool {
	on, _ := r.held()
	return on != conn
}

// lost implements [dependent]. If the owner is shutting down, its objects no longer exist either.
func (r *Reference) lost(conn *Conn) {
	if r.detach(conn) && conn.ownerLeft() {
		r.stale(status.StaleObjectMissing, "")
	}
}

// detach records that conn has ended, and the reference with it. It returns false if the reference is not held on conn.
func (r *Reference) detach(conn *Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != conn {
		return false
	}
	r.conn = nil
	return true
}

// attach records a reference that was acquired on conn, and its token. It returns false if the reference has ended or
// is already held on conn; the caller must then release the new one.
func (r *Reference) attach(conn *Conn, token uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.conn == conn {
		return false
	}
	r.conn, r.token = conn, token
	return true
}

// resume implements [dependent]. It acquires the reference again, and ends it if the object no longer exists or the
// owner refuses.
func (r *Reference) resume(ctx context.Context, conn *Conn) error {
	defer conn.objects.track()()
	switch {
	case !r.needsResume(conn) || r.Err() != nil: // released meanwhile
		return nil
	case r.Server != conn.Server.Server:
		r.stale(status.StaleServerMismatch, "")
		return nil
	}
	if err := r.of.watch(ctx, conn); err != nil {
		return err
	}
	var again message.ObjectInfo
	err := conn.request(ctx, Request{Op: message.OpObjectRefer, Body: message.Object{ID: r.ID}}, &again)
	switch {
	case errors.Is(err, status.ErrStale), refused(err):
		r.stale(status.StaleObjectMissing, "")
		return nil
	case err != nil:
		return err
	}
	switch {
	case !r.attach(conn, again.Token):
		conn.releaseObject(r.ID, again.Token)
	case conn.objects.wasDestroyed(r.ID): // before this reference was registered on conn
		r.stale(status.StaleObjectMissing, "")
	}
	return nil
}
