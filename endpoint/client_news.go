package endpoint

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// objectNews is what a connection hears of destroyed objects. While references are on their way it remembers what it heard: the news may
// come before the reference is known here.
type objectNews struct {
	mu       sync.Mutex
	asked    bool          // the request to be told has been sent
	asking   chan struct{} // closed when whoever sends it has done so, or could not; nil while nobody does
	expected int           // references on their way
	gone     map[string]struct{}
	bytes    int               // of the ids in gone
	spent    map[uint64]string // references that were given back by id: the objects, by token
}

// maxNews is how many bytes of ids of destroyed objects a client remembers while references are on their way: far more than an owner
// that has to say something of as many objects as it may keep for a client.
const maxNews = 32 << 20

// expect begins and ends the time in which references are on their way.
func (n *objectNews) expect() (end func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expected++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.expected--; n.expected == 0 {
			n.gone, n.bytes, n.spent = nil, 0, nil
		}
	}
}

// note remembers a destroyed object.
func (n *objectNews) note(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.expected == 0 {
		return nil
	}
	if n.bytes += len(id) + 64; n.bytes > maxNews { // with what it takes to keep one
		return fmt.Errorf("%w: the owner tells of more destroyed objects than a client can have", status.ErrProtocol)
	}
	if n.gone == nil {
		n.gone = map[string]struct{}{}
	}
	n.gone[id] = struct{}{}
	return nil
}

// noteSpent remembers references that were given back by id.
func (n *objectNews) noteSpent(tokens map[uint64]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.expected == 0 {
		return
	}
	if n.spent == nil {
		n.spent = map[uint64]string{}
	}
	maps.Copy(n.spent, tokens)
}

// wasSpent reports whether a reference was given back by id before it was known here.
func (n *objectNews) wasSpent(r *reference) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return r.isOneOf(n.spent)
}

func (n *objectNews) heardOf(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, heard := n.gone[id]
	return heard
}

// once calls ask unless that was done with success before, and returns when it was: what its callers send afterwards comes
// after what ask sent.
func (n *objectNews) once(ctx context.Context, ask func() error) error {
	for {
		n.mu.Lock()
		if n.asked {
			n.mu.Unlock()
			return nil
		}
		asking := n.asking
		if asking == nil {
			n.asking = make(chan struct{})
			n.mu.Unlock()
			return n.settle(ask())
		}
		n.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (n *objectNews) settle(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = err == nil
	close(n.asking)
	n.asking = nil
	return err
}

// watchObjects asks the owner, once a connection, to tell of objects that it destroys. Requests that are sent afterwards are heard of.
func (c *Client) watchObjects(ctx context.Context, l *link) error {
	return l.news.once(ctx, func() error {
		ask := call{op: message.OpObjectWatch, body: message.WatchObjects{}, item: func(frame wire.Frame) error { return c.objectGone(l, frame) }}
		_, err := l.start(ctx, ask, func(frame wire.Frame, _ error) { frame.Files.Close() })
		return err
	})
}

// objectGone is called by whoever reads the connection with an object that was destroyed. It takes the frame.
func (c *Client) objectGone(l *link, frame wire.Frame) error {
	defer frame.Files.Close()
	var gone message.ObjectGone
	if err := message.Unmarshal(frame.Body, &gone); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	if err := l.news.note(gone.ID); err != nil { // before looking for references: those that are not found look here
		return err
	}
	for _, r := range c.referencesTo(gone.ID) {
		if r.heldOn() == l {
			r.stale(status.StaleObjectMissing, gone.Reason)
			c.lose(r, status.StaleObjectMissing)
		}
	}
	return nil
}
