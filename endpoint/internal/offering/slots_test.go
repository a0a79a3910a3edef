package offering

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func TestDeclinedCallGoesToAnotherWorker(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		full, free := table.offer(t, 1, "one"), table.offer(t, 2, "one")
		first := table.call(t, "one")
		full.decline(full.called())
		number := free.called()
		second := table.call(t, "one")
		number2 := free.called() // not sent to the worker that declined, although it runs fewer calls
		require.NoError(t, free.answer(number))
		require.NoError(t, free.answer(number2))
		require.NoError(t, first.result())
		require.NoError(t, second.result())
		require.Zero(t, full.slotsInUse())
	})
}

func TestDeclinedStreamGoesToAnotherWorker(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		full, free := table.offer(t, 1, "stream"), table.offer(t, 1, "stream")
		c := table.call(t, "stream")
		full.decline(full.called())
		require.NoError(t, free.end(free.called()))
		require.NoError(t, c.result())
	})
}

// A worker that declined a call ranks behind busy ones also after its pause, until one of its functions has ended.
func TestDecliningWorkerRanksLast(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		full, busy := table.offer(t, 2, "one"), table.offer(t, 2, "one")
		calls := []*fakeCall{table.call(t, "one")}
		full.decline(full.called())
		first := busy.called()
		pass(lastPause)
		calls = append(calls, table.call(t, "one"))
		second := busy.called()
		calls = append(calls, table.call(t, "one")) // only the worker that declined has a free slot
		require.NoError(t, full.answer(full.called()))
		calls = append(calls, table.call(t, "one")) // the worker has shown that it has room
		require.NoError(t, full.answer(full.called()))
		require.NoError(t, busy.answer(first))
		require.NoError(t, busy.answer(second))
		for _, c := range calls {
			require.NoError(t, c.result())
		}
	})
}

// A call that all workers decline waits. It keeps its place before later calls of all endpoints.
func TestDeclinedCallKeepsTurn(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "one", "two")
		first := table.call(t, "one")
		w.decline(w.called())
		second := table.call(t, "two")
		w.idle()
		pass(firstPause)
		list := w.events()
		require.Len(t, list, 1)
		require.Equal(t, "one", list[0].Endpoint)
		w.decline(list[0].Call)
		w.idle()
		pass(2 * firstPause)
		require.NoError(t, w.answer(w.called()))
		require.NoError(t, first.result())
		list = w.events() // the end of a function shows that the worker has room
		require.Len(t, list, 1)
		require.Equal(t, "two", list[0].Endpoint)
		require.NoError(t, w.answer(list[0].Call))
		require.NoError(t, second.result())
	})
}

// A waiting call gets a free worker even if an earlier call waits for another worker.
func TestDeclineDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "one")
		w.offerMore(2, 1, "two")
		first := table.call(t, "one")
		w.decline(w.called())
		second := table.call(t, "two") // another endpoint in another offer of the same worker
		require.NoError(t, w.answer(w.called()))
		require.NoError(t, second.result())
		first.waits()
		third := table.call(t, "one")
		pass(firstPause)
		require.NoError(t, w.answer(w.called()))
		require.NoError(t, w.answer(w.called()))
		require.NoError(t, first.result())
		require.NoError(t, third.result())
	})
}

// A worker that declines receives one call per pause instead of all waiting calls. The pause grows to one second.
func TestDecliningWorkerGetsOneCallPerPause(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 4, "one")
		var calls []*fakeCall
		for range 8 {
			calls = append(calls, table.call(t, "one"))
		}
		for _, e := range w.events() {
			w.decline(e.Call)
		}
		sent := 0
		for start := time.Now(); time.Since(start) < 10*time.Second; {
			pass(firstPause)
			for _, e := range w.events() {
				sent++
				w.decline(e.Call)
			}
		}
		require.LessOrEqual(t, sent, 18, "8 pauses below a second, and then one a second")
		require.GreaterOrEqual(t, sent, 10)
		for pending := len(calls); pending > 0; {
			pass(lastPause)
			for _, e := range w.events() {
				require.NoError(t, w.answer(e.Call))
				pending--
			}
		}
		for _, c := range calls {
			require.NoError(t, c.result())
		}
	})
}

// A decline after an item is an error, because the function has run. The call is not repeated.
func TestDeclineAfterItemIsAnError(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w, other := table.offer(t, 1, "stream"), table.offer(t, 1, "stream")
		c := table.call(t, "stream")
		number := w.called()
		response := w.item(t.Context(), number)
		<-c.items
		require.NoError(t, <-response)
		w.decline(number)
		require.ErrorIs(t, c.result(), message.CodeInternal)
		other.idle()
		require.Zero(t, w.slotsInUse())
	})
}

// A worker that has withdrawn its offer declines a call that crossed the withdrawal.
func TestDeclineAfterWithdrawal(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w, other := table.offer(t, 1, "one"), table.offer(t, 1, "one")
		c := table.call(t, "one")
		number := w.called()
		require.True(t, w.Withdraw(1))
		w.decline(number)
		number = other.called()
		require.True(t, other.Withdraw(1))
		other.decline(number)
		require.ErrorIs(t, c.result(), status.ErrNoEndpoint)
		pass(lastPause)
		require.Zero(t, w.slotsInUse()+other.slotsInUse())
	})
}

// A caller that leaves while a worker declines leaves no waiter or slot behind.
func TestCallerLeavesDeclinedCall(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{})
		w := table.offer(t, 1, "one")
		c := table.call(t, "one")
		w.decline(w.called())
		c.leave()
		require.Error(t, c.result())
		pass(lastPause)
		w.idle()
		c = table.call(t, "one")
		number := w.called()
		c.leave()
		require.Error(t, c.result())
		require.Len(t, w.events(), 1)
		require.ErrorIs(t, w.fail(number, *message.Decline("full")), errAbandoned)
		require.Zero(t, w.slotsInUse())
		require.Zero(t, table.waiting)
	})
}

// Calls fail instead of waiting if functions that were cancelled long ago fill all workers.
func TestOverdueCallsFailWaitingOnes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{Overdue: time.Minute})
		w, other := table.offer(t, 1, "one"), table.offer(t, 1, "one")
		cancelled, running := table.call(t, "one"), table.call(t, "one")
		number, live := w.called(), other.called()
		waits := table.call(t, "one")
		cancelled.leave()
		require.Error(t, cancelled.result())
		require.Len(t, w.events(), 1)
		pass(2 * time.Minute)
		waits.waits() // the other worker's function may still end
		running.waits()
		require.Zero(t, table.Refusals.Of(status.LimitWorkerCalls), "waiting is no refusal")

		running.leave()
		require.Error(t, running.result())
		require.Len(t, other.events(), 1)
		pass(time.Minute - 1)
		waits.waits()
		pass(1)
		err := waits.result()
		require.ErrorIs(t, err, status.ErrLimit)
		require.ErrorContains(t, err, "restart the workers")
		require.ErrorIs(t, table.call(t, "one").result(), status.ErrLimit, "a new call fails at once")

		require.ErrorIs(t, w.answer(number), errAbandoned)
		c := table.call(t, "one")
		require.NoError(t, w.answer(w.called()))
		require.NoError(t, c.result())
		require.ErrorIs(t, other.answer(live), errAbandoned)
		require.Zero(t, w.overdue+other.overdue)
	})
}

// Each worker's first overdue call is logged, and no other.
func TestOverdueWorkerIsLoggedOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{Overdue: time.Minute})
		var log bytes.Buffer
		table.Log = slog.New(slog.NewTextHandler(&log, nil))
		w, other := table.offer(t, 2, "one"), table.offer(t, 2, "one")
		for range 3 {
			table.call(t, "one").leave()
			pass(time.Second)
		}
		pass(2 * time.Minute)
		require.Equal(t, 3, w.overdue+other.overdue)
		require.Equal(t, 2, strings.Count(log.String(), "level=WARN"), log.String())
		require.Contains(t, log.String(), "pid=7")
		require.Contains(t, log.String(), "endpoint=one")
	})
}

// The limit on the calls of a worker applies to all of its offers together, and so do overdue calls.
func TestOverdueCallsOfAnotherOffer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{Limits: status.Limits{WorkerCalls: 1}, Overdue: time.Minute})
		w := table.offer(t, 1, "one")
		w.offerMore(2, 1, "two")
		first := table.call(t, "one")
		w.called()
		waits := table.call(t, "two")
		first.leave()
		require.Error(t, first.result())
		pass(time.Minute)
		require.ErrorIs(t, waits.result(), status.ErrLimit)
	})
}

// Calls fail when the last worker that is not stuck leaves.
func TestStuckWorkerRemains(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{Overdue: time.Minute})
		stuck := table.offer(t, 1, "one")
		first := table.call(t, "one")
		stuck.called()
		first.leave()
		require.Error(t, first.result())
		pass(time.Minute)
		busy := table.offer(t, 1, "one")
		second, waits := table.call(t, "one"), table.call(t, "one")
		busy.called()
		busy.disconnect()
		require.ErrorIs(t, second.result(), status.ErrWorkerGone)
		require.ErrorIs(t, waits.result(), status.ErrLimit)
	})
}

// A worker that declines all calls for a long time fails them, and receives calls again later.
func TestDecliningForLongFailsCalls(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{Overdue: time.Minute})
		w := table.offer(t, 2, "one")
		c := table.call(t, "one")
		start := time.Now()
		for len(c.ended) == 0 {
			require.Less(t, time.Since(start), 2*time.Minute)
			for _, e := range w.events() {
				w.decline(e.Call)
			}
			pass(firstPause)
		}
		require.ErrorIs(t, c.result(), status.ErrLimit)
		require.GreaterOrEqual(t, time.Since(start), time.Minute)
		pass(lastPause)
		c = table.call(t, "one")
		require.NoError(t, w.answer(w.called()))
		require.NoError(t, c.result())
	})
}

// Timers of calls and pauses end with the worker.
func TestEndStopsTimers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		table := testTable(Config{Overdue: time.Minute})
		w := table.offer(t, 2, "one")
		cancelled, declined := table.call(t, "one"), table.call(t, "one")
		list := w.events()
		w.decline(list[1].Call)
		cancelled.leave()
		declined.leave()
		require.Error(t, cancelled.result())
		require.Error(t, declined.result())
		w.table.mu.Lock()
		o, c := w.offers[1], w.calls[list[0].Call]
		w.table.mu.Unlock()
		w.disconnect()
		require.False(t, o.timer.Stop(), "the pause")
		require.False(t, c.timer.Stop(), "the time until the call is overdue")
		pass(2 * time.Minute)
		require.Zero(t, w.overdue)
	})
}
