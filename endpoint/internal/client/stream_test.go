package client

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// streamed returns a stream and the id of its request.
func (w *fakeOwner) streamed(c *Client) (s *Stream, id uint64) {
	w.t.Helper()
	s, err := c.Stream(w.t.Context(), Call{Name: "f"})
	require.NoError(w.t, err)
	return s, w.NextRequest(message.OpStream, nil)
}

// item sends an item of a stream.
func (w *fakeOwner) item(id uint64, value byte) {
	w.t.Helper()
	w.SendFrame(wire.KindEvent, id, message.StreamItem{Value: message.RawMessage{value}})
}

// next takes the next item of a stream.
func next(t *testing.T, s *Stream) (value int) {
	t.Helper()
	frame, err := s.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Take(frame, &value))
	return value
}

// Items arrive in order. The client allows more items after it has taken half of the window.
func TestStreamItems(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	s, id := w.streamed(c)
	defer s.Close(t.Context())
	for i := range byte(message.StreamWindow) {
		w.item(id, i)
	}
	for i := range message.StreamWindow {
		require.Equal(t, i, next(t, s))
	}
	for range 2 {
		var more message.StreamMore
		w.NextRequest(message.OpStreamMore, &more)
		require.Equal(t, message.StreamMore{Stream: id, Items: message.StreamWindow / 2}, more)
	}
	w.item(id, 3)
	w.SendFrame(wire.KindResponse, id, nil)
	require.Equal(t, 3, next(t, s), "an item before the end")
	_, err := s.Next(t.Context())
	require.ErrorIs(t, err, io.EOF)
}

// The error of the function, and the end of the connection, end a stream after the items that arrived before.
func TestStreamFails(t *testing.T) {
	drivertest.Leaks(t)
	for want, end := range map[error]func(w *fakeOwner, id uint64){
		status.ErrNotFound: func(w *fakeOwner, id uint64) {
			w.SendFrame(wire.KindError, id, message.Error{Code: message.CodeNotFound, Message: "no"})
		},
		status.ErrUnavailable: func(w *fakeOwner, _ uint64) { w.Close() },
	} {
		t.Run(want.Error(), func(t *testing.T) {
			c, w := session(t)
			s, id := w.streamed(c)
			defer s.Close(t.Context())
			w.item(id, 1)
			end(w, id)
			require.Equal(t, 1, next(t, s))
			_, err := s.Next(t.Context())
			require.ErrorIs(t, err, want)
		})
	}
}

// A reader that leaves cancels the function with the cause of its context. Items that arrive afterwards are dropped.
func TestStreamClosed(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	s, id := w.streamed(c)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBroken)
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, errBroken)
	w.item(id, 1)
	s.Close(ctx)
	s.Close(ctx)
	frame := w.NextFrame()
	require.Equal(t, wire.KindCancel, frame.Kind)
	require.Equal(t, id, frame.ID)
	var in message.Cancel
	require.NoError(t, message.Unmarshal(frame.Body, &in))
	require.Contains(t, in.Reason, errBroken.Error())
	w.item(id, 2)
	w.SendFrame(wire.KindError, id, message.Error{Code: message.CodeCanceled, Message: "cancelled"})
	w.pings()
}

// An owner that sends more items than allowed violates the protocol.
func TestStreamOverrun(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	s, id := w.streamed(c)
	defer s.Close(t.Context())
	for range 2*message.StreamWindow + 1 {
		w.item(id, 1)
	}
	within(t, "the end of the connection", w.conn.Done)
	require.ErrorIs(t, w.conn.reason(), status.ErrProtocol)
}

// watched returns a watch of tasks and the id of its request.
func (w *fakeOwner) watched(c *Client) (tasks *TaskEvents, id uint64) {
	w.t.Helper()
	done := make(chan *TaskEvents, 1)
	go func() {
		tasks, err := c.WatchTasks(w.t.Context(), message.WatchTasks{})
		if err != nil {
			w.t.Error(err)
		}
		done <- tasks
	}()
	id = w.NextRequest(message.OpTaskWatch, nil)
	w.SendFrame(wire.KindResponse, id, message.WatchingTasks{})
	return <-done, id
}

// task sends an event of a task.
func (w *fakeOwner) task(id uint64, kind message.TaskEventKind, task, state string) {
	w.t.Helper()
	w.SendFrame(wire.KindEvent, id, message.TaskEvent{Kind: kind, Task: &message.TaskInfo{ID: task, State: state}})
}

// A watch of tasks keeps each state and the newest progress in it. After the end of the connection it returns what
// arrived before.
func TestTaskEvents(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	tasks, id := w.watched(c)
	defer tasks.Close()
	w.task(id, message.TaskListed, "a", "pending")
	for range 10 {
		w.task(id, message.TaskChanged, "a", "running")
	}
	w.task(id, message.TaskChanged, "a", "completed")
	w.Close()
	within(t, "the end of the connection", w.conn.Done)
	events, err := tasks.Next(t.Context())
	require.NoError(t, err)
	var states []string
	for _, e := range events {
		states = append(states, e.Task.State)
	}
	require.Equal(t, []string{"pending", "running", "completed"}, states)
	_, err = tasks.Next(t.Context())
	require.ErrorIs(t, err, status.ErrUnavailable)
}

// A slow reader of too many changes is told that it missed some, and gets the list of tasks again.
func TestTaskEventsMissed(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	tasks, id := w.watched(c)
	defer tasks.Close()
	for i := range keptChanges + 1 {
		w.task(id, message.TaskChanged, fmt.Sprint(i), "running")
	}
	w.pings() // the events have arrived
	missed := make(chan error, 1)
	go func() {
		events, err := tasks.Next(t.Context())
		if err == nil && (len(events) != 1 || events[0].Kind != message.TasksMissed) {
			err = fmt.Errorf("%d events", len(events))
		}
		missed <- err
	}()
	var in message.Unwatch
	w.NextRequest(message.OpUnwatch, &in)
	require.Equal(t, id, in.Watch)
	id = w.NextRequest(message.OpTaskWatch, nil)
	w.task(id, message.TaskListed, "a", "running")
	w.SendFrame(wire.KindResponse, id, message.WatchingTasks{})
	require.NoError(t, <-missed)
	events, err := tasks.Next(t.Context())
	require.NoError(t, err)
	require.Len(t, events, 1)
}

// A caller that leaves before the owner has begun the watch ends it when the answer arrives.
func TestTaskEventsCancelled(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := c.WatchTasks(ctx, message.WatchTasks{}); done <- err }()
	id := w.NextRequest(message.OpTaskWatch, nil)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Equal(t, wire.KindCancel, w.NextFrame().Kind)
	w.SendFrame(wire.KindResponse, id, message.WatchingTasks{})
	var in message.Unwatch
	w.NextRequest(message.OpUnwatch, &in)
	require.Equal(t, id, in.Watch)
}
