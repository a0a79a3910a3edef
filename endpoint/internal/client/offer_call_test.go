package client

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A full worker declines calls and keeps the connection. A function whose caller has left counts until it returns.
func TestOfferFullWorkerDeclines(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	d, began, release := blocked("blocked")
	defer release()
	_, request := w.offered(1, d, add)
	w.call(request, 1, "blocked")
	within(t, "the function runs", began)
	w.call(request, 2, "add")
	w.declined(2)
	w.pings()
	w.cancel(request, 1)
	w.call(request, 3, "add")
	w.declined(3)
	release()
	require.Equal(t, message.RawMessage("\x67blocked"), w.answered(1).Value)
	w.call(request, 4, "add")
	require.Nil(t, w.answered(4).Error)
}

// Functions of an earlier connection count until they return.
func TestOfferFullOfEarlierCalls(t *testing.T) {
	drivertest.Leaks(t)
	w, next := acceptedOwner(t), acceptedOwner(t)
	d, began, release := blocked("blocked")
	defer release()
	o, request := w.offered(1, d, add)
	w.call(request, 1, "blocked")
	within(t, "the function runs", began)
	w.call(request, 2, "add")
	w.declined(2)
	w.Close()
	within(t, "the end of the connection", w.conn.Done)
	used := next.begin(&Client{Connector: o.of})
	request = next.accept(1)
	within(t, "the offer is made", used)
	next.call(request, 1, "add")
	next.declined(1)
	release()
	for number := uint64(2); ; number++ { // the function of the earlier connection returns at any time
		next.call(request, number, "add")
		if a := next.answered(number); a.Error == nil {
			break
		}
	}
}

// Calls of unknown endpoints, and calls after the end of the offer, are declined.
func TestOfferUnknownCalls(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	o, request := w.offered(1, add)
	w.call(request, 1, "other")
	w.declined(1)
	w.cancel(request, 7) // a call that has ended
	w.pings()
	o.of.end(&o.record, status.ErrClosed)
	w.NextRequest(message.OpUnwatch, nil)
	w.call(request, 2, "add")
	w.declined(2)
	w.pings()
}

// A call number that is in use ends the connection with a protocol error.
func TestOfferDuplicateCall(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	d, began, release := blocked("blocked")
	defer release()
	_, request := w.offered(2, d)
	w.call(request, 1, "blocked")
	within(t, "the function runs", began)
	w.call(request, 1, "blocked")
	within(t, "the end of the link", w.conn.over)
	require.ErrorIs(t, w.conn.reason(), status.ErrProtocol)
}

// The error of a function never declines the call, because the owner would run the function again.
func TestOfferFunctionCannotDecline(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	_, request := w.offered(1, function("declines", func(context.Context) (any, error) {
		return nil, message.Decline("the owner that I call is busy")
	}))
	w.call(request, 1, "declines")
	a := w.answered(1)
	require.False(t, a.Error.Declines())
	require.Equal(t, message.CodeInternal, a.Error.Code)
	require.Equal(t, "the owner that I call is busy", a.Error.Message)
}

// A function that calls runtime.Goexit has ended and frees its slot.
func TestOfferGoexitFreesSlot(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	_, request := w.offered(1, add, function("exits", func(context.Context) (any, error) {
		runtime.Goexit()
		return nil, nil
	}))
	w.call(request, 1, "exits")
	require.Equal(t, "goexit", w.answered(1).Error.Type)
	w.call(request, 2, "add")
	require.Nil(t, w.answered(2).Error)
}

// The owner may refuse an answer before it has identified the call. The worker reports the end again, so that the owner
// frees the slot.
func TestOfferReportsEndAgain(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	_, request := w.offered(1, add)
	limit := &message.Error{Code: message.CodeResourceExhausted, Type: "limit", Message: "too many requests"}
	w.call(request, 1, "add")
	a, id := w.answer(1)
	require.Nil(t, a.Error)
	w.SendFrame(wire.KindError, id, limit)
	for range 3 {
		a, id = w.answer(1)
		require.Equal(t, message.CodeResourceExhausted, a.Error.Code)
		w.SendFrame(wire.KindError, id, limit)
	}
	w.answered(1)

	w.call(request, 2, "add")
	_, id = w.answer(2)
	w.SendFrame(wire.KindError, id, &message.Error{Code: message.CodeInvalidArgument, Type: "invalid", Message: "bad result"})
	_, id = w.answer(2)
	w.SendFrame(wire.KindError, id, &message.Error{Code: message.CodeNotFound, Type: "name", Message: "answered before"})
	w.pings()
}

// After the refusal of an item the function ends, and the worker reports that.
func TestOfferRefusedItemEndsFunction(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	sent := make(chan error, 1)
	d := function("stream", nil)
	d.Stream = func(_ context.Context, _ any, send func(any) error) error {
		err := send(1)
		sent <- err
		return err
	}
	d.Invoke = engine.InvokeStream(d)
	_, request := w.offered(1, d)
	w.call(request, 1, "stream")
	a, id := w.answer(1)
	require.True(t, a.More)
	w.SendFrame(wire.KindError, id, &message.Error{Code: message.CodeCanceled, Message: "no caller waits"})
	require.ErrorIs(t, <-sent, context.Canceled)
	a = w.answered(1)
	require.False(t, a.More)
	require.NotNil(t, a.Error)
}

// A function of a stream whose context ends withdraws its item and reports its end.
func TestOfferItemEndsWithFunction(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	failed := errors.New("the function failed")
	d := function("stream", nil)
	d.Stream = func(ctx context.Context, _ any, send func(any) error) error {
		if err := send(1); err != nil {
			return failed
		}
		return nil
	}
	d.Invoke = engine.InvokeStream(d)
	_, request := w.offered(1, d)
	w.call(request, 1, "stream")
	_, item := w.answer(1)
	w.cancel(request, 1)
	frame := w.NextFrame()
	require.Equal(t, wire.KindCancel, frame.Kind)
	require.Equal(t, item, frame.ID)
	require.Equal(t, failed.Error(), w.answered(1).Error.Message)
}
