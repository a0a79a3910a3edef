package link

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// ObjectEvents are the destroyed objects that an owner has named on a connection. While references are on their way it
// remembers them: such an event may come before the reference is known here.
type ObjectEvents struct {
	mu       sync.Mutex
	asked    bool          // the request for these events has been sent
	asking   chan struct{} // closed when whoever sends it has done so, or could not; nil while nobody does
	expected int           // references on their way
	gone     map[string]struct{}
	bytes    int               // of the ids in gone
	spent    map[uint64]string // references that were released by id: the objects, by token
}

// maxEvents is how many bytes of ids of destroyed objects a client remembers while references are on their way: far
// more than an owner that has to say something of as many objects as it may keep for a client.
const maxEvents = 32 << 20

// Expect begins and ends the time in which references are on their way.
func (n *ObjectEvents) Expect() (end func()) {
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

// Note remembers a destroyed object.
func (n *ObjectEvents) Note(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.expected == 0 {
		return nil
	}
	if n.bytes += len(id) + 64; n.bytes > maxEvents { // with what it takes to keep one
		return fmt.Errorf("%w: the owner tells of more destroyed objects than a client can have", status.ErrProtocol)
	}
	if n.gone == nil {
		n.gone = map[string]struct{}{}
	}
	n.gone[id] = struct{}{}
	return nil
}

// NoteSpent remembers references that were released by id.
func (n *ObjectEvents) NoteSpent(tokens map[uint64]string) {
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

// WasSpent reports whether a reference was given back by id before it was known here.
func (n *ObjectEvents) WasSpent(id string, token uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return token != 0 && n.spent[token] == id
}

// HeardOf reports whether an object was destroyed while references were on their way.
func (n *ObjectEvents) HeardOf(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, heard := n.gone[id]
	return heard
}

// Once calls ask unless that was done with success before, and returns when it was: what its callers send afterwards
// comes after what ask sent.
func (n *ObjectEvents) Once(ctx context.Context, ask func() error) error {
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

func (n *ObjectEvents) settle(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = err == nil
	close(n.asking)
	n.asking = nil
	return err
}
