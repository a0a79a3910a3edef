package client

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// fetched is the outcome of a Fetch.
type fetched struct {
	value int
	ref   *Reference
	err   error
}

// fetch fetches an integer in another goroutine.
func fetch(ctx context.Context, c *Client, call Call) <-chan fetched {
	done := make(chan fetched, 1)
	go func() {
		var f fetched
		f.ref, f.err = c.Fetch(ctx, call, &f.value)
		done <- f
	}()
	return done
}

// returned is the answer to a call with an integer below 24. Its object has the token, unless that is 0.
func returned(value byte, token uint64) message.Returned {
	r := message.Returned{Value: message.RawMessage{value}}
	if token != 0 {
		r.Object = &message.ObjectRef{ID: "object", Server: "one", Token: token}
	}
	return r
}

// releasedOne receives the release of one reference and returns its token.
func (w *fakeOwner) releasedOne() uint64 {
	w.t.Helper()
	var in message.ReleaseObjects
	id := w.NextRequest(message.OpObjectRelease, &in)
	require.Equal(w.t, []string{"object"}, in.IDs)
	require.Len(w.t, in.Tokens, 1)
	w.SendFrame(wire.KindResponse, id, message.ObjectsReleased{Objects: []message.ObjectReleased{{ID: "object", Released: true, Token: in.Tokens[0]}}})
	return in.Tokens[0]
}

func TestFetchCall(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	done := fetch(t.Context(), c, Call{Name: "f", In: 5})
	var in message.Call
	id := w.NextRequest(message.OpCall, &in)
	require.Equal(t, "f", in.Endpoint)
	require.Equal(t, message.RawMessage{5}, in.Args)
	w.SendFrame(wire.KindResponse, id, returned(7, 1))
	require.Equal(t, fetched{value: 7}, <-done)
	require.EqualValues(t, 1, w.releasedOne(), "the reference is not kept")

	done = fetch(t.Context(), c, Call{Name: "f"})
	w.SendFrame(wire.KindError, w.NextRequest(message.OpCall, nil), message.Error{Code: message.CodeNotFound, Message: "no"})
	got := <-done
	require.ErrorIs(t, got.err, status.ErrNotFound)
	require.False(t, errors.Is(got.err, status.ErrUnavailable))
}

func TestFetchTaskResult(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	done := fetch(t.Context(), c, Call{Task: &TaskID{ID: "task 1"}})
	var in message.Task
	id := w.NextRequest(message.OpTaskResult, &in)
	require.Equal(t, "task 1", in.ID)
	w.SendFrame(wire.KindResponse, id, returned(7, 0))
	require.Equal(t, fetched{value: 7}, <-done)
}

// A result that cannot be decoded is an error, and its reference is released.
func TestFetchUndecodable(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	_, err := c.Fetch(t.Context(), Call{Name: "f"}, 7)
	require.ErrorIs(t, err, status.ErrInvalid, "nothing is sent")
	for _, out := range []any{new(string), new(bool)} {
		done := make(chan error, 1)
		go func() { _, err := c.Fetch(t.Context(), Call{Name: "f"}, out); done <- err }()
		w.SendFrame(wire.KindResponse, w.NextRequest(message.OpCall, nil), returned(7, 3))
		require.Error(t, <-done)
		require.EqualValues(t, 3, w.releasedOne())
	}
	require.NoError(t, w.conn.reason(), "the connection is good")
	done := fetch(t.Context(), c, Call{Name: "f"})
	w.SendFrame(wire.KindResponse, w.NextRequest(message.OpCall, nil), "not a result")
	require.ErrorIs(t, (<-done).err, status.ErrProtocol)
}

// A caller that leaves gets the cause of its context. The owner receives a cancellation with that cause, and a reference
// in a late answer is released.
func TestFetchCancelled(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := fetch(ctx, c, Call{Name: "f"})
	id := w.NextRequest(message.OpCall, nil)
	cancel(errBroken)
	require.ErrorIs(t, (<-done).err, errBroken)
	frame := w.NextFrame()
	require.Equal(t, wire.KindCancel, frame.Kind)
	require.Equal(t, id, frame.ID)
	var in message.Cancel
	require.NoError(t, message.Unmarshal(frame.Body, &in))
	require.Contains(t, in.Reason, errBroken.Error())
	w.SendFrame(wire.KindResponse, id, returned(7, 9))
	require.EqualValues(t, 9, w.releasedOne())

	require.ErrorIs(t, (<-fetch(ctx, c, Call{Name: "f"})).err, errBroken)
	w.pings()
}

// A call that was sent is not repeated when its connection is lost.
func TestFetchConnectionLost(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	done := fetch(t.Context(), c, Call{Name: "f"})
	w.NextRequest(message.OpCall, nil)
	w.Close()
	got := <-done
	require.ErrorIs(t, got.err, status.ErrUnavailable)
	require.False(t, NotSent(got.err))
	within(t, "the end of the connection", w.conn.Done)
}

// A request that was not sent because its connection had ended is sent on the next one.
func TestRequestRepeatedIfNotSent(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	tries := 0
	require.NoError(t, c.onConn(t.Context(), func(conn *Conn) error {
		require.Same(t, w.conn, conn)
		if tries++; tries == 1 {
			return &notSentError{status.ErrUnavailable}
		}
		return nil
	}))
	require.Equal(t, 2, tries)
	tries = 0
	require.ErrorIs(t, c.onConn(t.Context(), func(*Conn) error { tries++; return status.ErrUnavailable }), status.ErrUnavailable)
	require.Equal(t, 1, tries)
}

// A task whose submitter leaves before the answer is cancelled when the answer arrives.
func TestSubmitCancelled(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, _, err := c.Submit(ctx, Call{Name: "f"}); done <- err }()
	id := w.NextRequest(message.OpSubmit, nil)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Equal(t, wire.KindCancel, w.NextFrame().Kind)
	w.SendFrame(wire.KindResponse, id, message.TaskInfo{ID: "task 1"})
	var in message.Task
	w.NextRequest(message.OpTaskCancel, &in)
	require.Equal(t, "task 1", in.ID)

	submitted := make(chan TaskID, 1)
	go func() { task, _, _ := c.Submit(t.Context(), Call{Name: "f"}); submitted <- task }()
	w.SendFrame(wire.KindResponse, w.NextRequest(message.OpSubmit, nil), message.TaskInfo{ID: "task 2"})
	submittedTask := <-submitted
	submittedTask.CancelQuietly()
	w.NextRequest(message.OpTaskCancel, &in)
	require.Equal(t, "task 2", in.ID)
}
