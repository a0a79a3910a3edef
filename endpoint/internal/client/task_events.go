package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Limits of the task events that a client keeps until they are taken.
const (
	// keptChanges is the maximum number of state changes in addition to the listed tasks.
	keptChanges = 4096
	// keptTasks is the maximum number of tasks that an owner may list.
	keptTasks = message.MaxElements
)

// TaskEvents holds the events of an owner's tasks until they are taken. It keeps each state change and the newest
// progress. If it overflows, it drops all events and requests the list of tasks again.
type TaskEvents struct {
	conn *Conn
	ask  message.WatchTasks
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	request uint64
	events  []message.TaskEvent
	latest  map[string]int // index in events of each task's newest event
	listed  int            // number of listed events
	missed  bool           // events were dropped
}

// WatchTasks starts to watch tasks. The caller closes the result.
func (c *Connector) WatchTasks(ctx context.Context, ask message.WatchTasks) (t *TaskEvents, err error) {
	err = c.onConn(ctx, func(conn *Conn) (err error) {
		t, err = watchTasks(ctx, conn, ask)
		return err
	})
	return t, err
}

// watchTasks starts to watch the tasks of the owner of a connection.
func watchTasks(ctx context.Context, conn *Conn, ask message.WatchTasks) (*TaskEvents, error) {
	t := &TaskEvents{conn: conn, ask: ask, wake: make(chan struct{}, 1), latest: map[string]int{}}
	return t, t.begin(ctx)
}

// Server returns the id of the owner that runs the tasks.
func (t *TaskEvents) Server() string { return t.conn.Server.Server }

// begin requests the events.
func (t *TaskEvents) begin(ctx context.Context) error {
	conn := t.conn
	id, frame, err := conn.RoundTrip(ctx, Request{Op: message.OpTaskWatch, Body: t.ask, Item: t.take, Late: conn.endLateWatch, OfTask: t.ask.ID != ""})
	if err != nil {
		return err
	}
	frame.Files.Close()
	conn.receiver.Listen(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.request = id
	return nil
}

// take handles the frame of an event. It runs in the goroutine that reads the connection and takes ownership of the
// frame.
func (t *TaskEvents) take(frame wire.Frame) error {
	defer frame.Files.Close()
	var e message.TaskEvent
	if err := message.Unmarshal(frame.Body, &e); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.missed:
		return nil // all will be listed again
	case e.Kind == message.TasksMissed:
		clear(t.latest)
		t.events = append(t.events, e)
	case e.Task == nil:
		return nil // unknown kind of a newer owner
	default:
		t.putLocked(e)
	}
	if len(t.events)-t.listed > keptChanges {
		t.events, t.listed, t.missed = nil, 0, true
		clear(t.latest)
	}
	if t.listed > keptTasks {
		return fmt.Errorf("%w: more than %d tasks", status.ErrProtocol, keptTasks)
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return nil
}

// putLocked stores an event. It replaces an event of the same task in the same state.
func (t *TaskEvents) putLocked(e message.TaskEvent) {
	if at, known := t.latest[e.Task.ID]; known && t.events[at].Task.State == e.Task.State {
		t.events[at].Task = e.Task
		return
	}
	t.latest[e.Task.ID] = len(t.events)
	t.events = append(t.events, e)
	if e.Kind == message.TaskListed {
		t.listed++
	}
}

// Next waits for events and returns them.
func (t *TaskEvents) Next(ctx context.Context) ([]message.TaskEvent, error) {
	for {
		gone := false
		select {
		case <-t.conn.Done: // checked before the events are taken, so that none are lost
			gone = true
		default:
		}
		t.mu.Lock()
		events, missed := t.events, t.missed
		t.events, t.listed = nil, 0
		clear(t.latest)
		t.mu.Unlock()
		switch {
		case missed && !gone:
			if err := t.again(ctx); err != nil {
				return nil, err
			}
			return []message.TaskEvent{{Kind: message.TasksMissed}}, nil
		case len(events) > 0:
			return events, nil
		case gone:
			return nil, t.conn.reason()
		}
		select {
		case <-t.wake:
		case <-t.conn.Done:
		case <-ctx.Done():
			return nil, ended.Cause(ctx)
		}
	}
}

// again requests the list of all tasks again.
func (t *TaskEvents) again(ctx context.Context) error {
	t.Close()
	t.mu.Lock()
	t.missed = false
	t.mu.Unlock()
	return t.begin(ctx)
}

// Close ends the watch and notifies the server.
func (t *TaskEvents) Close() {
	t.mu.Lock()
	id := t.request
	t.request = 0
	t.mu.Unlock()
	if id != 0 {
		t.conn.unwatch(id)
	}
}
