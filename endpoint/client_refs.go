package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// references are the live references of the client.
func (c *Client) references() []*reference {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refs.all()
}

// referencesTo are those to one object.
func (c *Client) referencesTo(id string) []*reference {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refs.of(id)
}

// lose ends a reference whose object is gone.
func (c *Client) lose(r *reference, reason status.StaleReason) {
	c.mu.Lock()
	c.refs.remove(r)
	c.mu.Unlock()
	r.stale(reason, "")
}

// hold is fetch that keeps the reference; nil where none comes.
func (c *Client) hold(ctx context.Context, f fetch, out any) (ref *reference, err error) {
	err = c.onLink(ctx, func(l *link.Link) (err error) {
		ref, err = c.holdOn(ctx, l, f, out)
		return err
	})
	return ref, err
}

// holdOn is hold on a certain connection.
func (c *Client) holdOn(ctx context.Context, l *link.Link, f fetch, out any) (*reference, error) {
	defer l.News.Expect()()
	if err := c.watchObjects(ctx, l); err != nil {
		return nil, err
	}
	got, err := c.fetchOn(ctx, l, f, out)
	if err != nil || got.Object == nil {
		return nil, err
	}
	return c.keepReference(l, got.Object), nil
}

// keepReference makes the reference that came over l known to the client. Where the connection has ended meanwhile, and
// the reference with it, it is taken again.
func (c *Client) keepReference(l *link.Link, obj *message.ObjectRef) *reference {
	r := newReference(c, obj)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		r.end(errReleased)
		return r
	}
	c.refs.add(r)
	live := c.link == l
	if live {
		r.link = l
	}
	c.mu.Unlock()
	switch {
	case l.News.HeardOf(r.id), !live && l.Left():
		c.lose(r, status.StaleObjectMissing)
	case r.spentIn(&l.News):
		c.mu.Lock()
		c.refs.remove(r)
		c.mu.Unlock()
		r.end(errReleased)
	case !live:
		c.onNext(func(ctx context.Context, next *link.Link) error {
			defer next.News.Expect()()
			return c.resumeReference(ctx, next, r)
		})
	}
	return r
}

// returnReference gives a live reference back, waiting for the answer or not.
func (c *Client) returnReference(ctx context.Context, r *reference, wait bool) (bool, error) {
	c.mu.Lock()
	c.refs.remove(r)
	c.mu.Unlock()
	l, token := r.held()
	switch {
	case l == nil: // it went with its connection
		return false, nil
	case !wait && c.dialSelf == nil:
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
func (c *Client) given(rows []message.ObjectReleased) {
	spent := tokensOf(rows)
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.links { // before looking for references: those that are not found look here
		l.News.NoteSpent(spent)
	}
	c.refs.end(spent)
}
