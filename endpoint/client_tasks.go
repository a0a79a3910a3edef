package endpoint

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Bounds of what a client keeps of events of tasks that nobody takes.
const (
	// keptChanges is how many changes of state are kept beside the tasks that were listed.
	keptChanges = 4096
	// keptTasks is how many tasks an owner may list.
	keptTasks = message.MaxElements
)

// taskNews is what happens to the tasks of an owner. It keeps every change of state until somebody takes it, and of the
// progress the newest; when it is too much, it has the tasks listed again.
type taskNews struct {
	link *link.Link
	ask  message.WatchTasks
	wake chan struct{} // has room for one

	mu      sync.Mutex
	request uint64
	events  []message.TaskEvent
	latest  map[string]int // where in events the newest of a task is
	listed  int            // of events
	missed  bool           // events were thrown away
}

// taskNews begins to tell what happens to tasks. The caller closes it.
func (c *Client) taskNews(ctx context.Context, ask message.WatchTasks) (n *taskNews, err error) {
	err = c.onLink(ctx, func(l *link.Link) error {
		n = &taskNews{link: l, ask: ask, wake: make(chan struct{}, 1), latest: map[string]int{}}
		return n.begin(ctx)
	})
	return n, err
}

// begin asks for events.
func (n *taskNews) begin(ctx context.Context) error {
	l := n.link
	id, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpTaskWatch, Body: n.ask, Item: n.take, Late: l.EndLateWatch})
	if err != nil {
		return err
	}
	frame.Files.Close()
	l.Receiver.Listen(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.request = id
	return nil
}

// take is called by whoever reads the connection with an event. It takes the frame.
func (n *taskNews) take(frame wire.Frame) error {
	defer frame.Files.Close()
	var e message.TaskEvent
	if err := message.Unmarshal(frame.Body, &e); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.missed:
		return nil // all are listed again
	case e.Kind == message.TasksMissed:
		clear(n.latest)
		n.events = append(n.events, e)
	case e.Task == nil:
		return nil // of a kind that came later
	default:
		n.putLocked(e)
	}
	if len(n.events)-n.listed > keptChanges {
		n.events, n.listed, n.missed = nil, 0, true
		clear(n.latest)
	}
	if n.listed > keptTasks {
		return fmt.Errorf("%w: more than %d tasks", status.ErrProtocol, keptTasks)
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
	return nil
}

// putLocked keeps an event, in the place of one of the same task in the same state.
func (n *taskNews) putLocked(e message.TaskEvent) {
	if at, known := n.latest[e.Task.ID]; known && n.events[at].Task.State == e.Task.State {
		n.events[at].Task = e.Task
		return
	}
	n.latest[e.Task.ID] = len(n.events)
	n.events = append(n.events, e)
	if e.Kind == message.TaskListed {
		n.listed++
	}
}

// next waits until something has happened, and returns it.
func (n *taskNews) next(ctx context.Context) ([]message.TaskEvent, error) {
	for {
		ended := false
		select {
		case <-n.link.Done: // before looking: what has come until then is told
			ended = true
		default:
		}
		n.mu.Lock()
		events, missed := n.events, n.missed
		n.events, n.listed = nil, 0
		clear(n.latest)
		n.mu.Unlock()
		switch {
		case missed && !ended:
			if err := n.again(ctx); err != nil {
				return nil, err
			}
			return []message.TaskEvent{{Kind: message.TasksMissed}}, nil
		case len(events) > 0:
			return events, nil
		case ended:
			return nil, n.link.Reason()
		}
		select {
		case <-n.wake:
		case <-n.link.Done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// again has all tasks listed again.
func (n *taskNews) again(ctx context.Context) error {
	n.close()
	n.mu.Lock()
	n.missed = false
	n.mu.Unlock()
	return n.begin(ctx)
}

// close ends it, and tells the server.
func (n *taskNews) close() {
	n.mu.Lock()
	id := n.request
	n.request = 0
	n.mu.Unlock()
	if id != 0 {
		n.link.Unwatch(id)
	}
}
