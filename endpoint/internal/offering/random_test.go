package offering

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// randomWorker runs functions that behave at random, within the rules.
type randomWorker struct {
	*fakeWorker
	rand    *rand.Rand
	slots   int
	running map[uint64]*randomFunction
	numbers []uint64 // keys of running in order, so that a seed repeats a run
}

// randomFunction is a running function.
type randomFunction struct {
	stream   bool
	withdraw context.CancelFunc
	response <-chan error // receives the response to the current item; nil if there is none
}

// receive processes the events that the worker received.
func (w *randomWorker) receive() {
	for _, e := range w.events() {
		switch {
		case e.Kind == message.OfferCancel: // functions may ignore a cancel
		case w.rand.IntN(4) == 0:
			w.decline(e.Call)
		default:
			require.Less(w.t, len(w.running), w.slots, "a call over the limit of the worker")
			w.running[e.Call] = &randomFunction{stream: e.Endpoint[0] == 's'}
			w.numbers = append(w.numbers, e.Call)
		}
	}
}

// step performs a random action of a random function.
func (w *randomWorker) step() {
	if len(w.numbers) == 0 {
		return
	}
	i := w.rand.IntN(len(w.numbers))
	number := w.numbers[i]
	f := w.running[number]
	select {
	case <-f.response:
		f.response = nil
		f.withdraw()
	default:
	}
	switch {
	case f.response != nil && w.rand.IntN(2) == 0:
		return
	case f.response == nil && f.stream && w.rand.IntN(3) > 0:
		var ctx context.Context
		ctx, f.withdraw = context.WithCancel(context.Background())
		if w.rand.IntN(8) > 0 {
			f.response = w.item(ctx, number)
			return
		}
		require.Error(w.t, w.Answer(ctx, &message.Answer{Call: number, Value: badValue, More: true}, nil))
		f.withdraw()
		return
	case f.response != nil:
		f.withdraw()
	}
	delete(w.running, number)
	w.numbers = append(w.numbers[:i], w.numbers[i+1:]...)
	switch { // if the owner has closed the call, the answer fails
	case w.rand.IntN(3) == 0:
		_ = w.fail(number, message.Error{Code: message.CodeApplication, Message: "failed"})
	case f.stream:
		_ = w.end(number)
	default:
		_ = w.answer(number)
	}
}

// For any behavior of functions and callers, each worker runs as many functions as it has slots in use, and each call
// ends.
func TestSlotsMatchFunctions(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { randomCalls(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func randomCalls(t *testing.T, r *rand.Rand) {
	table := testTable(Config{Overdue: time.Hour})
	var workers []*randomWorker
	for i := range 2 {
		slots := 1 + r.IntN(3)
		workers = append(workers, &randomWorker{
			fakeWorker: table.offer(t, uint64(slots), "stream", "one"), rand: rand.New(rand.NewPCG(r.Uint64(), uint64(i))),
			slots: slots, running: map[uint64]*randomFunction{},
		})
	}
	var calls []*fakeCall
	check := func() {
		for _, w := range workers {
			w.receive()
		}
		for _, w := range workers {
			w.receive() // calls that the other worker declined
			require.Equal(t, len(w.running), w.slotsInUse())
		}
	}
	for range 300 {
		switch r.IntN(4) {
		case 0:
			calls = append(calls, table.call(t, []string{"stream", "one"}[r.IntN(2)]))
		case 1:
			workers[r.IntN(len(workers))].step()
		case 2:
			if len(calls) > 0 && r.IntN(4) == 0 {
				calls[r.IntN(len(calls))].leave()
			}
		case 3:
			pass(firstPause)
		}
		take(calls)
		check()
	}
	for _, c := range calls {
		c.leave()
	}
	for range 10000 {
		take(calls)
		workers[0].step()
		workers[1].step()
		check()
		if len(workers[0].running)+len(workers[1].running) == 0 {
			break
		}
	}
	for _, c := range calls {
		_ = c.result()
	}
	require.Zero(t, table.waiting)
	for _, w := range workers {
		require.Zero(t, w.slotsInUse())
		w.disconnect()
	}
}

// take lets some callers take an item.
func take(calls []*fakeCall) {
	for _, c := range calls {
		select {
		case <-c.items:
		default:
		}
	}
}
