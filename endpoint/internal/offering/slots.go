package offering

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// An offer has a number of slots, and each call holds one from before it is sent until the worker reports the end of
// the function. Calls without a slot wait in the queues of their endpoints, in the order of their turns.
//
// A worker that declines a call has no room although the owner counted a free slot, for example while it still runs
// functions for callers of an earlier connection. Its offer pauses, then receives one call per pause until a function
// ends.
//
// A call whose caller has left is overdue if its function does not end within [Overdue]. An offer is stuck if
// overdue calls hold all of its slots, or if it runs no other calls and has declined new ones for that long. Calls of an
// endpoint fail instead of waiting if all of its offers are stuck.

// The first and the longest pause of an offer that declined a call.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// defaultOverdue is the default of [Overdue].
const defaultOverdue = 30 * time.Second

// waiter is a call that waits for a slot.
type waiter struct {
	turn uint64
	got  chan placement // buffered for its only value
}

// placement is the result of waiting: an offer with a slot for the call, or an error.
type placement struct {
	offer *offer
	err   error
}

// errWithdrawn is the error of a call whose endpoint was withdrawn after it was found.
func errWithdrawn(name string) error {
	return fmt.Errorf("endpoint %s: %w: its last worker has withdrawn it", status.Shown(name), status.ErrNoEndpoint)
}

// errStuck is the error of a call that no worker can take.
func (e *endpoint) errStuck() error {
	return status.Exceeded(status.LimitWorkerCalls, "endpoint %s: its workers are full of calls that were cancelled over %v ago and have not ended; restart the workers",
		status.Shown(e.info.Name), e.table.Overdue)
}

// place takes a slot for a call, and waits if all workers are full. It sets the call's turn the first time. A declined
// call keeps its turn.
func (e *endpoint) place(ctx context.Context, turn *uint64) (*offer, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w, o, err := e.takeOrWait(turn)
	if w == nil {
		return o, err
	}
	select {
	case got := <-w.got:
		return got.offer, got.err
	case <-ctx.Done():
		e.leaveQueue(w)
		return nil, context.Cause(ctx)
	}
}

// takeOrWait takes a free slot, or returns a waiter in the queue.
func (e *endpoint) takeOrWait(turn *uint64) (*waiter, *offer, error) {
	t := e.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(e.offers) == 0 {
		return nil, nil, errWithdrawn(e.info.Name)
	}
	if *turn == 0 {
		t.turn++
		*turn = t.turn
	}
	if o := e.leastLocked(); o != nil { // no calls are waiting
		o.takeSlotLocked()
		return nil, o, nil
	}
	if e.stuckLocked() {
		return nil, nil, e.errStuck()
	}
	w := &waiter{turn: *turn, got: make(chan placement, 1)}
	i := slices.IndexFunc(e.queue, func(other *waiter) bool { return other.turn > w.turn })
	if i < 0 {
		i = len(e.queue)
	}
	e.queue = slices.Insert(e.queue, i, w)
	t.waiting++
	return w, nil, nil
}

// leaveQueue removes a call that stopped waiting. A slot that it received at the same moment goes to the next call.
func (e *endpoint) leaveQueue(w *waiter) {
	t := e.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(e.queue, w); i >= 0 {
		e.queue = slices.Delete(e.queue, i, i+1)
		t.waiting--
		return
	}
	if got := <-w.got; got.offer != nil {
		got.offer.releaseSlotLocked()
	}
}

// failQueueLocked ends the waiting of all calls with an error.
func (e *endpoint) failQueueLocked(err error) {
	for _, w := range e.queue {
		w.got <- placement{err: err}
	}
	e.table.waiting -= len(e.queue)
	e.queue = nil
}

// failStuckLocked ends the waiting of all calls if all offers of the endpoint are stuck.
func (e *endpoint) failStuckLocked() {
	if len(e.queue) > 0 && e.stuckLocked() {
		e.failQueueLocked(e.errStuck())
	}
}

// failStuckLocked does the same for each endpoint of the offer.
func (o *offer) failStuckLocked() {
	for _, e := range o.endpoints {
		e.failStuckLocked()
	}
}

// leastLocked returns the offer with the fewest calls that has a free slot, or nil. Offers that declined a call rank
// last.
func (e *endpoint) leastLocked() (least *offer) {
	for _, o := range e.offers {
		if o.roomLocked() && (least == nil || o.beforeLocked(least)) {
			least = o
		}
	}
	return least
}

// beforeLocked reports whether an offer is a better choice than another one.
func (o *offer) beforeLocked(other *offer) bool {
	if (o.pause == 0) != (other.pause == 0) {
		return o.pause == 0
	}
	return o.running < other.running
}

// roomLocked reports whether an offer may receive a call.
func (o *offer) roomLocked() bool {
	return o.begun && !o.paused && o.running < o.slots && o.worker.running < o.worker.table.Limits.WorkerCalls
}

// takeSlotLocked takes a slot. An offer that declined a call pauses before it receives the next one.
func (o *offer) takeSlotLocked() {
	o.running++
	o.worker.running++
	if o.pause > 0 {
		o.pauseLocked()
	}
}

// releaseSlotLocked frees a slot and assigns it to the call that has waited longest.
func (o *offer) releaseSlotLocked() {
	o.running--
	o.worker.running--
	for _, other := range o.worker.offers {
		other.fillLocked()
	}
}

// fillLocked assigns free slots of an offer to waiting calls.
func (o *offer) fillLocked() {
	t := o.worker.table
	for t.waiting > 0 && o.roomLocked() {
		var next *endpoint
		for _, e := range o.endpoints {
			if len(e.queue) > 0 && (next == nil || e.queue[0].turn < next.queue[0].turn) {
				next = e
			}
		}
		if next == nil {
			return
		}
		w := next.queue[0]
		next.queue = next.queue[1:]
		t.waiting--
		o.takeSlotLocked()
		w.got <- placement{offer: o}
	}
}

// declinedLocked pauses an offer because its worker declined a call.
func (o *offer) declinedLocked() {
	if !o.currentLocked() {
		return
	}
	if o.pause == 0 {
		o.pause, o.declined = firstPause, time.Now()
	}
	if !o.paused {
		o.pauseLocked()
	}
}

// acceptedLocked ends the pauses of an offer because a function has ended: its worker has room.
func (o *offer) acceptedLocked() {
	o.pause, o.paused, o.declined = 0, false, time.Time{}
	o.stopLocked()
}

// pauseLocked stops sending calls to an offer until a timer fires.
func (o *offer) pauseLocked() {
	o.paused = true
	if o.timer == nil {
		o.timer = time.AfterFunc(o.pause, o.endPause)
		return
	}
	o.timer.Reset(o.pause)
}

// endPause lets an offer receive a call again. The next pause is longer.
func (o *offer) endPause() {
	o.worker.table.mu.Lock()
	defer o.worker.table.mu.Unlock()
	if !o.currentLocked() || !o.paused {
		return
	}
	o.paused, o.pause = false, min(2*o.pause, lastPause)
	o.fillLocked()
}

// stopLocked stops the timer of the pause.
func (o *offer) stopLocked() {
	if o.timer != nil {
		o.timer.Stop()
	}
}

// stuckLocked reports whether all offers of the endpoint are stuck.
func (e *endpoint) stuckLocked() bool {
	for _, o := range e.offers {
		if !o.stuckLocked() {
			return false
		}
	}
	return len(e.offers) > 0
}

// stuckLocked reports whether no running call can give the offer room when it ends.
func (o *offer) stuckLocked() bool {
	t := o.worker.table
	full := o.overdue >= o.slots || o.worker.overdue >= t.Limits.WorkerCalls
	return full || !o.declined.IsZero() && time.Since(o.declined) >= t.Overdue && o.running <= o.overdue
}

// becomeOverdue records that a function still runs long after its caller has left. The first one of a worker is logged.
func (c *call) becomeOverdue() {
	w := c.worker
	if w.countOverdue(c) {
		w.table.Log.Warn("a worker still runs a function whose caller has left; restart it if its calls do not end",
			"pid", w.about.PID, "label", w.about.Label, "endpoint", c.name, "after", w.table.Overdue)
	}
}

// countOverdue counts a call that became overdue, and reports whether it is the worker's first.
func (w *Worker) countOverdue(c *call) (first bool) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if w.calls[c.number] != c {
		return false
	}
	c.overdue = true
	c.offer.overdue++
	w.overdue++
	for _, o := range w.offers {
		o.failStuckLocked()
	}
	first = !w.reported
	w.reported = true
	return first
}

// stopLocked removes a call's overdue state and stops its timer.
func (c *call) stopLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.overdue {
		c.overdue = false
		c.offer.overdue--
		c.worker.overdue--
	}
}
