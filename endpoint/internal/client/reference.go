package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Reference is one reference to a managed object.
type Reference struct {
	// ID identifies the object at the server with the id Server, for the server's lifetime.
	ID, Server string

	record
	done chan struct{} // closed when the reference has ended

	token uint64 // identifies the reference within the session; guarded by the connector's lock
}

var errReleased = status.Closed("the reference to an object")

// keep adds a reference that was received on conn. If conn has ended, and the reference with it, the next connection
// requests the reference again.
func (c *Connector) keep(conn *Conn, obj *message.ObjectRef) *Reference {
	r := &Reference{ID: obj.ID, Server: obj.Server, token: obj.Token, done: make(chan struct{})}
	r.record = record{of: c, content: r}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.addHeldLocked(&r.record, conn) {
		c.endLocked(&r.record, errReleased)
		return r
	}
	if c.objects[r.ID] == nil {
		c.objects[r.ID] = map[*Reference]struct{}{}
	}
	c.objects[r.ID][r] = struct{}{}
	if conn.objects.wasDestroyed(r.ID) || !r.held && conn.ownerLeft() {
		r.staleLocked(status.StaleObjectMissing, "")
	}
	return r
}

// watchObjects subscribes to the owner's events of destroyed objects, once for each connection. Objects that are
// requested afterwards are covered.
func (c *Connector) watchObjects(ctx context.Context, conn *Conn) error {
	return conn.objects.once(ctx, func() error {
		ask := Request{Op: message.OpObjectWatch, Body: message.WatchObjects{}, Item: func(frame wire.Frame) error { return c.objectGone(conn, frame) }}
		_, err := conn.start(ctx, ask, closeFrame)
		return err
	})
}

// objectGone handles the event of a destroyed object. It runs in the goroutine that reads the connection and takes
// ownership of the frame.
func (c *Connector) objectGone(conn *Conn, frame wire.Frame) error {
	defer frame.Files.Close()
	var gone message.ObjectGone
	if err := message.Unmarshal(frame.Body, &gone); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	if err := conn.objects.noteDestroyed(gone.ID); err != nil { // before the loop: references that are added later check these events
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.objects[gone.ID] {
		if r.held && r.conn == conn {
			r.staleLocked(status.StaleObjectMissing, gone.Reason)
		}
	}
	return nil
}

// Done returns a channel that is closed when the reference ends.
func (r *Reference) Done() <-chan struct{} { return r.done }

// Err returns why the reference has ended, or nil while it is live.
func (r *Reference) Err() error {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	return r.ended
}

// Release releases the reference. If wait is set, it waits for the answer. It returns false if the server released
// nothing: at the second call, or if the object no longer exists.
func (r *Reference) Release(ctx context.Context, wait bool) (bool, error) {
	r.of.mu.Lock()
	conn, token, held := r.conn, r.token, r.held
	first := r.of.endLocked(&r.record, errReleased)
	r.of.mu.Unlock()
	switch {
	case !first, !held: // if it is not held, the end of the connection has released it
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

// staleLocked ends the reference because its object no longer exists. detail is the server's explanation.
func (r *Reference) staleLocked(reason string, detail string) {
	r.of.endLocked(&r.record, &status.StaleError{ObjectID: r.ID, ServerID: r.Server, Reason: reason, Detail: detail})
}

// LoseObjects ends all references because their objects no longer exist.
func (c *Connector) LoseObjects() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, same := range c.objects {
		for r := range same {
			r.staleLocked(status.StaleObjectMissing, "")
		}
	}
}

var errOtherServer = errors.New("the owner was replaced")

// askLocked implements [content].
func (r *Reference) askLocked(conn *Conn) (Request, error) {
	if r.Server != conn.Server.Server {
		return Request{}, errOtherServer
	}
	return Request{Op: message.OpObjectRefer, Body: message.Object{ID: r.ID}, Late: conn.releaseLateObject}, nil
}

// acceptLocked implements [content].
func (r *Reference) acceptLocked(frame wire.Frame) (more bool, err error) {
	var again message.ObjectInfo
	if err := decodeAnswer(frame, &again); err != nil {
		return false, err
	}
	r.token = again.Token
	if r.conn.objects.wasDestroyed(r.ID) {
		r.staleLocked(status.StaleObjectMissing, "")
	}
	return false, nil
}

// refused implements [content].
func (r *Reference) refused(err error) {
	reason := status.StaleObjectMissing
	if err == errOtherServer {
		reason = status.StaleServerMismatch
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.staleLocked(reason, "")
}

// lostLocked implements [content]. If the owner is shutting down, its objects no longer exist either.
func (r *Reference) lostLocked(conn *Conn) {
	if r.held && r.conn == conn && conn.ownerLeft() {
		r.staleLocked(status.StaleObjectMissing, "")
	}
}

// endLocked implements [content].
func (r *Reference) endLocked(error) {
	same := r.of.objects[r.ID]
	if delete(same, r); len(same) == 0 {
		delete(r.of.objects, r.ID)
	}
	close(r.done)
}

// release implements [content].
func (r *Reference) release(conn *Conn) { conn.releaseObject(r.ID, r.token) }
