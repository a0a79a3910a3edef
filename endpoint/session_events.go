package endpoint

import (
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// events are a session's subscriptions: its watches, and one for each lease. What has happened waits in their sources,
// which keep what is newest, so a client that does not read costs no memory and holds up nobody. A goroutine sends
// while there is something to send, and is not there otherwise.
type events struct {
	mu      sync.Mutex
	subs    map[uint64]*subscription // by the id of the request that asked for them
	weight  int                      // of all of them
	due     []*subscription          // those that have something to report, each once
	pumping bool
	stopped bool

	objects *objectsSource // gets destroyed objects; nil where no request asked for them
}

// source is what a subscription is of: it keeps what has happened, within bounds, until it is taken.
type source interface {
	// weight is what the subscription counts: one for each name, or for as many events as one that waits for many can
	// have.
	weight() int
	// open begins to keep what happens. wake is called when there is something, on whatever goroutine made it happen.
	open(wake func())
	// opening reports whether there is something to report before anything happens.
	opening() bool
	// take returns what has happened, as messages. Only the pump calls it.
	take() []any
	// close ends it.
	close()
}

// subscription passes events of a source on to one request of the client.
type subscription struct {
	id   uint64
	from source

	// Guarded by events.mu.
	ready bool // the request has been answered: events may follow
	woken bool // something has happened since the pump last looked
}

// subscribe collects events of the names, nil for all, for a request. With current, the versions that are current are
// reported first.
func (ses *session) subscribe(id uint64, names []string, current bool) (*subscription, error) {
	return ses.follow(id, &namesSource{server: ses.server, names: names, current: current})
}

// follow collects events of a source for a request. They are held back until begin.
func (ses *session) follow(id uint64, from source) (*subscription, error) {
	sub := &subscription{id: id, from: from}
	e := &ses.events
	e.mu.Lock()
	defer e.mu.Unlock()
	switch limit := ses.server.opts.Limits.Subscriptions; {
	case e.subs[id] != nil:
		return nil, fmt.Errorf("%w: request %d was sent before", wire.ErrProtocol, id)
	case from.weight() > 0 && e.weight > 0 && e.weight+from.weight() > limit:
		return nil, limits.Exceeded(limits.Subscriptions, "this client has leases and watches of %d names, and may have %d", e.weight, limit)
	case e.subs == nil:
		e.subs = map[uint64]*subscription{}
	}
	from.open(func() { ses.happened(sub) })
	e.subs[id] = sub
	e.weight += from.weight()
	return sub, nil
}

// begin lets the events of a subscription go out, now that its request has been answered.
func (ses *session) begin(sub *subscription) {
	e := &ses.events
	e.mu.Lock()
	defer e.mu.Unlock()
	sub.ready = true
	if sub.from.opening() || sub.woken {
		e.due = append(e.due, sub)
		ses.wakeLocked()
	}
}

// happened is told by a source that there is something to report. It returns at once.
func (ses *session) happened(sub *subscription) {
	e := &ses.events
	e.mu.Lock()
	defer e.mu.Unlock()
	if sub.woken {
		return
	}
	sub.woken = true
	if sub.ready {
		e.due = append(e.due, sub)
		ses.wakeLocked()
	}
}

// unsubscribe ends a subscription and reports whether there was one.
func (ses *session) unsubscribe(id uint64) bool {
	e := &ses.events
	e.mu.Lock()
	defer e.mu.Unlock()
	sub := e.subs[id]
	if sub == nil {
		return false
	}
	sub.from.close()
	delete(e.subs, id)
	e.weight -= sub.from.weight()
	return true
}

// stop ends all subscriptions; the pump ends by itself.
func (e *events) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	for _, sub := range e.subs {
		sub.from.close()
	}
	e.subs, e.due = nil, nil
}

// wakeLocked has the pump run.
func (ses *session) wakeLocked() {
	if e := &ses.events; !e.pumping && !e.stopped {
		e.pumping = true
		ses.work.Add(1)
		go ses.pump()
	}
}

// pump sends what has happened until nothing is left.
func (ses *session) pump() {
	defer ses.work.Done()
	for {
		subs, more := ses.events.take()
		if !more {
			return
		}
		for _, sub := range subs {
			if err := ses.report(sub); err != nil {
				ses.cut() // the reader ends the session, which stops the pump
				break
			}
		}
	}
}

// take returns the subscriptions that may have something to report, or false when the pump is to end.
func (e *events) take() (subs []*subscription, more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped || len(e.due) == 0 {
		e.pumping = false
		return nil, false
	}
	for _, sub := range e.due {
		sub.woken = false
		if e.subs[sub.id] == sub {
			subs = append(subs, sub)
		}
	}
	e.due = nil
	return subs, true
}

// report sends what has happened for one subscription. Only the pump calls it.
func (ses *session) report(sub *subscription) error {
	for _, event := range sub.from.take() {
		body, err := message.Marshal(event)
		if err != nil {
			return err
		}
		if err := ses.conn.Send(wire.KindEvent, sub.id, body); err != nil {
			return err
		}
	}
	return nil
}
