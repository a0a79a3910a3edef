package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// objectEvents records the objects that an owner has reported as destroyed on a connection. It keeps them while
// references are in flight, because an event may arrive before the reference is registered here.
type objectEvents struct {
	mu         sync.Mutex
	subscribed bool          // the request for these events was sent
	asking     chan struct{} // closed when the goroutine that sends it has finished; nil while there is none
	expected   int           // calls whose references are in flight
	gone       map[string]struct{}
	bytes      int // size of the ids in gone
}

// maxEvents is the maximum size in bytes of the ids of destroyed objects while references are in flight. It is far
// above the objects that an owner may hold for one client.
const maxEvents = 32 << 20

// track begins a period in which references are in flight; end ends it.
func (n *objectEvents) track() (end func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expected++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.expected--; n.expected == 0 {
			n.gone, n.bytes = nil, 0
		}
	}
}

// noteDestroyed records a destroyed object. It fails if maxEvents is exceeded.
func (n *objectEvents) noteDestroyed(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.expected == 0 {
		return nil
	}
	if n.bytes += len(id) + 64; n.bytes > maxEvents { // plus the overhead of one entry
		return fmt.Errorf("%w: the owner reports more destroyed objects than a client can hold", status.ErrProtocol)
	}
	if n.gone == nil {
		n.gone = map[string]struct{}{}
	}
	n.gone[id] = struct{}{}
	return nil
}

// wasDestroyed reports whether an object was destroyed while references were in flight.
func (n *objectEvents) wasDestroyed(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, destroyed := n.gone[id]
	return destroyed
}

// once calls ask until it succeeds for the first time, and returns after that success. Requests that the caller sends
// afterwards follow the one that ask sent.
func (n *objectEvents) once(ctx context.Context, ask func() error) error {
	for {
		n.mu.Lock()
		if n.subscribed {
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
			return ended.Cause(ctx)
		}
	}
}

func (n *objectEvents) settle(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subscribed = err == nil
	close(n.asking)
	n.asking = nil
	return err
}
