package offering

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

var (
	errWithdrew = errors.New("the function's time is over")
	badValue    = []byte{0xc1, 1} // a tag that is invalid in values
)

// A worker withdraws an item when its function's context ends. The caller gets an error at once, and the slot is free
// when the function has ended.
func TestItemEndsOnContext(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "stream")
		first := table.call(t, "stream")
		number := w.called()
		ctx, cancel := context.WithCancelCause(context.Background())
		response := w.item(ctx, number)
		first.waits() // the caller has not taken the item
		cancel(errWithdrew)
		require.ErrorIs(t, <-response, errWithdrew)
		<-first.items
		err := first.result()
		require.ErrorIs(t, err, message.CodeInternal)
		require.ErrorContains(t, err, errWithdrew.Error())
		require.NotErrorIs(t, err, context.Canceled, "the caller did not cancel")

		second := table.call(t, "stream")
		w.idle()
		require.Equal(t, 1, w.slotsInUse())
		require.ErrorIs(t, w.fail(number, message.Error{Code: message.CodeCanceled}), errAbandoned)
		number = w.called()
		require.NoError(t, w.end(number))
		require.NoError(t, second.result())
		require.Zero(t, w.slotsInUse())
	})
}

func TestItemEndsOnDeadline(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "stream")
		c := table.call(t, "stream")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		response := w.item(ctx, w.called())
		require.ErrorIs(t, <-response, context.DeadlineExceeded)
		<-c.items
		require.ErrorIs(t, c.result(), context.DeadlineExceeded)
	})
}

// The worker ends a function at the deadline of its call. Its withdrawal of an item may overtake the owner's timer.
func TestItemEndsOnDeadlineOfCall(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		time.Sleep(time.Second) // the timer fires at the same time
		require.ErrorIs(t, expired(ctx), context.DeadlineExceeded)
		ctx, cancel = context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.NoError(t, expired(ctx))
		require.NoError(t, expired(context.Background()))
	})
}

// An item that is refused ends the call for its caller. The function runs on, and so it keeps the slot.
func TestRefusedItemKeepsSlot(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "stream")
		first := table.call(t, "stream")
		number := w.called()
		require.Error(t, w.Answer(context.Background(), &message.Answer{Call: number, Value: badValue, More: true}, nil))
		require.ErrorContains(t, first.result(), "invalid answer of the worker")

		second := table.call(t, "stream")
		w.idle()
		require.ErrorIs(t, <-w.item(context.Background(), number), errAbandoned)
		w.idle()
		require.ErrorIs(t, w.end(number), errAbandoned)
		require.NoError(t, w.end(w.called()))
		require.NoError(t, second.result())
	})
}

// A cancelled function keeps its slot until it ends, even if it sends answers before.
func TestCancelledCallKeepsSlot(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "stream", "one")
		first := table.call(t, "stream")
		number := w.called()
		response := w.item(context.Background(), number)
		<-first.items
		require.NoError(t, <-response)
		first.leave()
		require.ErrorIs(t, first.result(), context.Canceled)
		require.Equal(t, message.OfferCancel, w.events()[0].Kind)
		second := table.call(t, "one")
		require.ErrorIs(t, <-w.item(context.Background(), number), errAbandoned)
		w.idle()
		require.ErrorIs(t, w.end(number), errAbandoned)

		number = w.called()
		second.leave()
		require.ErrorIs(t, second.result(), context.Canceled)
		require.Equal(t, message.OfferCancel, w.events()[0].Kind)
		third := table.call(t, "one")
		w.idle()
		require.ErrorIs(t, w.answer(number), errAbandoned)
		require.NoError(t, w.answer(w.called()))
		require.NoError(t, third.result())
		require.Zero(t, w.slotsInUse())
	})
}

// If the caller leaves while an item is being delivered, the item is refused, and the function keeps its slot until it
// ends.
func TestCallerLeavesDuringItem(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "stream")
		c := table.call(t, "stream")
		number := w.called()
		response := w.item(context.Background(), number)
		c.waits()
		c.leave()
		require.ErrorIs(t, <-response, errAbandoned)
		require.ErrorIs(t, c.result(), context.Canceled)
		require.Equal(t, message.OfferCancel, w.events()[0].Kind)
		require.Equal(t, 1, w.slotsInUse())
		require.ErrorIs(t, w.fail(number, message.Error{Code: message.CodeCanceled}), errAbandoned)
		require.Zero(t, w.slotsInUse())
	})
}

// A function can end while its last item has no response: the worker withdrew the item, and the owner receives the end
// before it has processed the withdrawal.
func TestLastAnswerDuringItem(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what string
		end  func(w *fakeWorker, call uint64) error
		code message.Code
	}{
		{"an error", func(w *fakeWorker, call uint64) error {
			return w.fail(call, message.Error{Code: message.CodeDeadlineExceeded})
		}, message.CodeDeadlineExceeded},
		{"success, though the item is lost", (*fakeWorker).end, message.CodeInternal},
	} {
		t.Run(row.what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				table := testTable(Config{})
				w := table.offer(t, 1, "stream")
				first := table.call(t, "stream")
				number := w.called()
				ctx, cancel := context.WithCancelCause(context.Background())
				response := w.item(ctx, number)
				first.waits()
				err := row.end(w, number)
				require.Equal(t, row.code == message.CodeInternal, errors.Is(err, status.ErrInvalid))
				require.Zero(t, w.slotsInUse(), "the function has ended")
				cancel(errWithdrew)
				require.ErrorIs(t, <-response, errWithdrew)
				<-first.items
				require.ErrorIs(t, first.result(), row.code)
				second := table.call(t, "stream")
				require.NoError(t, w.end(w.called()))
				require.NoError(t, second.result())
			})
		})
	}
}

// An item before the response to the previous item ends the call with an error, because it could be lost otherwise.
func TestOverlappingItemsEndCall(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "stream")
		c := table.call(t, "stream")
		number := w.called()
		response := w.item(context.Background(), number)
		c.waits()
		require.ErrorIs(t, <-w.item(context.Background(), number), status.ErrInvalid)
		<-c.items
		require.NoError(t, <-response)
		require.ErrorIs(t, c.result(), message.CodeInternal)
		require.Equal(t, 1, w.slotsInUse())
		require.ErrorIs(t, w.end(number), errAbandoned)
		require.Zero(t, w.slotsInUse())
	})
}

// If the connection ends before the caller has taken an item, the error does not blame the worker's function.
func TestWorkerGoneDuringItem(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "stream")
		c := table.call(t, "stream")
		ctx, cancel := context.WithCancelCause(context.Background())
		response := w.item(ctx, w.called())
		c.waits()
		w.disconnect()
		cancel(context.Canceled) // the session ends the requests after the worker
		require.Error(t, <-response)
		<-c.items
		require.ErrorIs(t, c.result(), status.ErrWorkerGone)
	})
}

func TestWorkerGoneBeforeAnswer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "one")
		c, waits := table.call(t, "one"), table.call(t, "one")
		w.called()
		w.disconnect()
		require.ErrorIs(t, c.result(), status.ErrWorkerGone)
		require.ErrorIs(t, waits.result(), status.ErrNoEndpoint)
		require.ErrorIs(t, w.answer(1), status.ErrNotFound)
	})
}

// A call succeeds if the worker answers and disconnects at once, even while the result is being read.
func TestAnswerBeforeWorkerGone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "one")
		call := table.call(t, "one")
		in := &message.Answer{Call: w.called(), Value: []byte{1}}
		c, a, err := w.take(in)
		require.NoError(t, err)
		w.disconnect()
		call.waits()
		require.NoError(t, c.finish(a, in, nil))
		require.NoError(t, call.result())
	})
}

// The end of a function is accepted once. A second answer fails with ErrNotFound.
func TestSecondAnswerIsNotFound(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "one", "stream")
		c := table.call(t, "one")
		number := w.called()
		more := &message.Answer{Call: number, Value: []byte{1}, More: true}
		require.ErrorIs(t, w.Answer(context.Background(), more, nil), status.ErrInvalid)
		c.waits()
		require.NoError(t, w.answer(number))
		require.NoError(t, c.result())
		require.ErrorIs(t, w.answer(number), status.ErrNotFound)

		s := table.call(t, "stream")
		require.ErrorIs(t, w.answer(w.called()), status.ErrInvalid)
		require.ErrorContains(t, s.result(), "invalid answer of the worker")
		require.Zero(t, w.slotsInUse())
	})
}

// Finish returns when no function is running, also if the callers have left before.
func TestFinishWaitsForFunctions(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "one")
		c := table.call(t, "one")
		number := w.called()
		finished := make(chan struct{})
		go func() {
			w.Finish(context.Background())
			close(finished)
		}()
		c.leave()
		require.ErrorIs(t, c.result(), context.Canceled)
		select {
		case <-finished:
			require.Fail(t, "a function runs")
		default:
		}
		require.ErrorIs(t, w.answer(number), errAbandoned)
		<-finished
	})
}
