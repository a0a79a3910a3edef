package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
)

// objectNews is what a connection hears of destroyed objects. While references are on their way it remembers what it heard: the news may
// come before the reference is known here.
type objectNews struct {
	mu       sync.Mutex
	watching bool
	expected int // references on their way
	gone     []string
}

// expect begins and ends the time in which references are on their way.
func (n *objectNews) expect() (end func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expected++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.expected--; n.expected == 0 {
			n.gone = nil
		}
	}
}

func (n *objectNews) note(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.expected > 0 {
		n.gone = append(n.gone, id)
	}
}

func (n *objectNews) heardOf(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.gone, id)
}

// begin is true for the first who asks.
func (n *objectNews) begin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	first := !n.watching
	n.watching = true
	return first
}

// watchObjects asks the owner, once a connection, to tell of objects that it destroys. Requests that are sent afterwards are heard of.
func (c *Client) watchObjects(l *link) error {
	if !l.news.begin() {
		return nil
	}
	ask := call{op: wire.OpObjectWatch, body: wire.WatchObjects{}, item: func(frame wire.Frame) error { return c.objectGone(l, frame) }}
	_, err := l.start(ask, func(frame wire.Frame, _ error) { frame.Files.Close() })
	return err
}

// objectGone is called by whoever reads the connection with an object that was destroyed. It takes the frame.
func (c *Client) objectGone(l *link, frame wire.Frame) error {
	defer frame.Files.Close()
	var gone wire.ObjectGone
	if err := wire.Unmarshal(frame.Body, &gone); err != nil {
		return fmt.Errorf("%w: event: %w", ErrProtocol, err)
	}
	l.news.note(gone.ID) // before looking for references: those that are not found look here
	for _, r := range c.references() {
		if r.id == gone.ID && r.heldOn() == l {
			r.stale(StaleObjectMissing, gone.Reason)
			c.lose(r, StaleObjectMissing)
		}
	}
	return nil
}

// references are the live references of the client.
func (c *Client) references() []*reference {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*reference, 0, len(c.refs))
	for r := range c.refs {
		list = append(list, r)
	}
	return list
}

// lose ends a reference whose object is gone.
func (c *Client) lose(r *reference, reason StaleReason) {
	c.mu.Lock()
	delete(c.refs, r)
	c.mu.Unlock()
	r.stale(reason, "")
}

// hold implements asker.
func (c *Client) hold(ctx context.Context, f fetch, out any) (*reference, error) {
	l, err := c.connected(ctx)
	if err != nil {
		return nil, err
	}
	defer l.news.expect()()
	if err := c.watchObjects(l); err != nil {
		return nil, err
	}
	got, err := c.fetchOn(ctx, l, f, out)
	if err != nil || got.Object == nil {
		return nil, err
	}
	return c.keepReference(l, got.Object), nil
}

// keepReference makes the reference that came over l known to the client. Where the connection has ended meanwhile, and the reference with it,
// it is taken again.
func (c *Client) keepReference(l *link, obj *wire.ObjectRef) *reference {
	r := newReference(c, obj)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		r.end(errReleased)
		return r
	}
	c.refs[r] = struct{}{}
	live := c.link == l
	if live {
		r.link = l
	}
	next := c.link
	if !live && next != nil {
		c.work.Add(1)
	}
	c.mu.Unlock()
	switch {
	case l.news.heardOf(r.id), !live && l.left():
		c.lose(r, StaleObjectMissing)
	case live:
	case next == nil:
		c.keepTrying()
	default:
		go func() {
			defer c.work.Done()
			c.resumeReferences(c.ctx, next)
		}()
	}
	return r
}

// returnReference implements keeper.
func (c *Client) returnReference(ctx context.Context, r *reference, wait bool) (bool, error) {
	c.mu.Lock()
	delete(c.refs, r)
	c.mu.Unlock()
	l, token := r.held()
	switch {
	case l == nil: // it went with its connection
		return false, nil
	case !wait:
		l.releaseObject(r.id, token)
		return true, nil
	}
	_, frame, err := l.roundTrip(ctx, call{op: wire.OpObjectRelease, body: releaseOne(r.id, token)})
	if err != nil {
		return false, fmt.Errorf("release object %s: %w", r.id, err)
	}
	defer frame.Files.Close()
	var got wire.ObjectsReleased
	if err := decodeAnswer(frame, &got); err != nil {
		return false, err
	}
	return len(got.Objects) == 1 && got.Objects[0].Released, nil
}

// given implements asker.
func (c *Client) given(rows []wire.ObjectReleased) {
	spent := tokensOf(rows)
	for _, r := range c.references() {
		if r.isOneOf(spent) && r.end(errReleased) {
			c.mu.Lock()
			delete(c.refs, r)
			c.mu.Unlock()
		}
	}
}

// referencesLost tells the references of a connection that it has ended. Where its owner has said that it is leaving, their objects are gone too.
func (c *Client) referencesLost(l *link) {
	left := l.left()
	for _, r := range c.references() {
		switch {
		case r.heldOn() != l:
		case left:
			c.lose(r, StaleObjectMissing)
		default:
			r.moveTo(nil)
		}
	}
}

// resumeReferences takes all references again on a new connection, or finds that their objects are gone. An error is of the connection.
func (c *Client) resumeReferences(ctx context.Context, l *link) error {
	for _, r := range c.references() {
		switch {
		case r.heldOn() == l:
			continue
		case r.server != l.server.Server:
			c.lose(r, StaleServerMismatch)
			continue
		}
		if err := c.watchObjects(l); err != nil {
			return err
		}
		_, frame, err := l.roundTrip(ctx, call{op: wire.OpObjectRefer, body: wire.Object{ID: r.id}})
		switch {
		case errors.Is(err, ErrStale):
			c.lose(r, StaleObjectMissing)
			continue
		case err != nil:
			return err
		}
		var again wire.ObjectInfo
		err = decodeAnswer(frame, &again)
		frame.Files.Close()
		if err != nil {
			return err
		}
		if !r.attach(l, again.Token) {
			l.releaseObject(r.id, again.Token)
		}
	}
	return nil
}
