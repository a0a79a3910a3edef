// Package offering is the endpoints of a server whose functions other processes run: workers offer them, calls go to
// the worker that has the fewest, and nothing that a worker answers is trusted.
package offering

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config says what a table works with.
type Config struct {
	Devices  transfer.Devices // what results may lie on
	Refusals limits.Refusals  // counts what is beyond the bounds
	Bounds   Bounds           // of what clients offer and answer
	// Taken reports whether the server has an endpoint of that name itself.
	Taken func(name string) bool
	// Borrow returns the memory that the server shares under a name; nil for an unknown name. The caller closes it.
	Borrow func(name string) *tensor.Storage
	// Withdrawn is told of an endpoint that nobody offers any more.
	Withdrawn func(name string)
}

// Bounds are those of the limits with the same names.
type Bounds struct {
	Endpoints, EndpointsTotal int           // that are offered
	Bytes, BytesTotal         int64         // of their descriptions
	Calls                     int           // that one worker has
	Time                      time.Duration // of a call; 0 for as long as the caller waits
	ResultBytes               int64         // of the memory of one result
}

// Table is the endpoints that the workers of a server offer.
type Table struct {
	Config

	mu      sync.Mutex
	by      map[string]*endpoint
	offered int   // endpoints, each as often as it is offered
	bytes   int64 // of their descriptions
	waiting int   // calls that wait for a worker
	turn    uint64
}

// endpoint is one endpoint that workers offer. Its fields are guarded by the table's lock.
type endpoint struct {
	table       *Table
	description []byte
	info        message.EndpointInfo
	definition  *engine.Definition
	offers      []*offer  // that have it
	queue       []*waiter // calls that wait, in the order in which they came
}

// waiter is a call that waits for a worker.
type waiter struct {
	turn uint64
	got  chan *offer // gets one offer, with a place for the call; nil where the endpoint was withdrawn
}

// New returns an empty table.
func New(c Config) *Table { return &Table{Config: c, by: map[string]*endpoint{}} }

// errNobody is a call of an endpoint that was withdrawn since it was found.
func errNobody(name string) error {
	return fmt.Errorf("endpoint %s: %w: its last worker has withdrawn it", status.Shown(name), status.ErrNoEndpoint)
}

// Lookup returns the endpoint of that name, nil where nobody offers it.
func (t *Table) Lookup(name string) *engine.Definition {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.by[name]; e != nil {
		return e.definition
	}
	return nil
}

// List returns the endpoints, in the order of their names.
func (t *Table) List() []*engine.Definition {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*engine.Definition, 0, len(t.by))
	for _, e := range t.by {
		list = append(list, e.definition)
	}
	slices.SortFunc(list, func(a, b *engine.Definition) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Use is how many endpoints are offered, and the bytes of their descriptions.
func (t *Table) Use() (endpoints int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offered, t.bytes
}

// joinLocked enters an offer of an endpoint, or finds that the name is taken.
func (t *Table) joinLocked(o *offer, d description) error {
	e := t.by[d.info.Name]
	switch {
	case t.Taken(d.info.Name):
		return fmt.Errorf("offer %q: %w by the owner itself", d.info.Name, status.ErrRegistered)
	case e == nil:
		e = &endpoint{table: t, description: d.encoded, info: d.info}
		e.definition = e.define()
		t.by[d.info.Name] = e
	case !bytes.Equal(e.description, d.encoded):
		return fmt.Errorf("offer %q: %w by another worker, with another description; workers that share an endpoint describe it alike",
			d.info.Name, status.ErrRegistered)
	}
	e.offers = append(e.offers, o)
	o.endpoints = append(o.endpoints, e)
	return nil
}

// removeLocked takes an offer's endpoints back. It returns those that nobody offers any more.
func (t *Table) removeLocked(o *offer) (withdrawn []string) {
	for _, e := range o.endpoints {
		e.offers = slices.DeleteFunc(e.offers, func(other *offer) bool { return other == o })
		if len(e.offers) > 0 {
			continue
		}
		delete(t.by, e.info.Name)
		withdrawn = append(withdrawn, e.info.Name)
		for _, w := range e.queue {
			w.got <- nil
		}
		t.waiting -= len(e.queue)
		e.queue = nil
	}
	o.endpoints = nil
	return withdrawn
}

// tellWithdrawn tells the server of endpoints that nobody offers any more. It is called without the lock.
func (t *Table) tellWithdrawn(names []string) {
	for _, name := range names {
		t.Withdrawn(name)
	}
}

// place waits for a worker that has room for a call of the endpoint, and takes the room.
func (e *endpoint) place(ctx context.Context) (*offer, error) {
	t := e.table
	t.mu.Lock()
	if len(e.offers) == 0 {
		t.mu.Unlock()
		return nil, errNobody(e.info.Name)
	}
	if o := e.leastLocked(); o != nil && len(e.queue) == 0 {
		o.takeLocked()
		t.mu.Unlock()
		return o, nil
	}
	t.turn++
	w := &waiter{turn: t.turn, got: make(chan *offer, 1)}
	e.queue = append(e.queue, w)
	t.waiting++
	t.mu.Unlock()
	t.Refusals.Add(limits.WorkerCalls)
	select {
	case o := <-w.got:
		if o == nil {
			return nil, errNobody(e.info.Name)
		}
		return o, nil
	case <-ctx.Done():
		e.leaveQueue(w)
		return nil, context.Cause(ctx)
	}
}

// leaveQueue removes a call that stopped waiting. A place that it got at the same moment goes to the next call.
func (e *endpoint) leaveQueue(w *waiter) {
	t := e.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(e.queue, w); i >= 0 {
		e.queue = slices.Delete(e.queue, i, i+1)
		t.waiting--
		return
	}
	if o := <-w.got; o != nil {
		o.leaveLocked()
	}
}

// leastLocked is the offer with the fewest calls that has room for one more; nil where none has.
func (e *endpoint) leastLocked() (least *offer) {
	for _, o := range e.offers {
		if o.roomLocked() && (least == nil || o.running < least.running) {
			least = o
		}
	}
	return least
}

// roomLocked reports whether an offer may get a call.
func (o *offer) roomLocked() bool {
	return o.begun && o.running < o.most && o.worker.running < o.worker.table.Bounds.Calls
}

// takeLocked takes the place of a call.
func (o *offer) takeLocked() {
	o.running++
	o.worker.running++
}

// leaveLocked gives the place of a call back: to the one that waits the longest, if any does.
func (o *offer) leaveLocked() {
	o.running--
	o.worker.running--
	for _, other := range o.worker.offers {
		other.fillLocked()
	}
}

// fillLocked gives an offer calls that wait, as long as it has room.
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
		o.takeLocked()
		w.got <- o // has room
	}
}
