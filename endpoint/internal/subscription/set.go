// Package subscription keeps what a client of a server wants to hear of, and sends it as it happens.
package subscription

import (
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Source is what a subscription is of: it keeps what has happened, within bounds, until it is taken.
type Source interface {
	// Weight is what the subscription counts: one for each name, or for as many events as one that waits for many can
	// have.
	Weight() int
	// Open begins to keep what happens. wake is called when there is something, on whatever goroutine made it happen.
	Open(wake func())
	// Opening reports whether there is something to report before anything happens.
	Opening() bool
	// Take returns what has happened, as messages. Only the goroutine that sends calls it.
	Take() []any
	// Close ends it.
	Close()
}

// MaxNames is how many names one watch may have. One of all names weighs as much.
const MaxNames = 1024

// Conn is what events are sent through.
type Conn interface {
	// Send sends the body of an event that belongs to a request. An error ends the connection.
	Send(request uint64, body []byte) error
	// Cut ends the connection.
	Cut()
}

// Set is the subscriptions of one client: its watches, and one for each lease. What has happened waits in their
// sources, which keep what is newest, so a client that does not read costs no memory and holds up nobody. A goroutine
// sends while there is something to send, and is not there otherwise. Its methods are safe for concurrent use.
type Set struct {
	conn  Conn
	limit int             // of the weight
	work  *sync.WaitGroup // has the sending goroutine while there is one

	mu      sync.Mutex
	subs    map[uint64]*Subscription // by the id of the request that asked for them
	weight  int                      // of all of them
	due     []*Subscription          // those that have something to report, each once
	sending bool
	stopped bool
	objects *objectsSource // gets destroyed objects; nil where no request asked for them
	unasked *Subscription  // that no request asked for; nil where there is none
}

// Subscription passes events of a source on to one request of the client.
type Subscription struct {
	id   uint64
	from Source

	// Guarded by Set.mu.
	ready bool // the request has been answered: events may follow
	woken bool // something has happened since the sender last looked
}

// Init makes an empty set that sends through conn, for at most limit of weight. The goroutine that sends is counted in
// work.
func (s *Set) Init(conn Conn, limit int, work *sync.WaitGroup) {
	s.conn, s.limit, s.work = conn, limit, work
}

// Add collects events of a source for a request. They are held back until Begin. Errors: [wire.ErrProtocol] for the
// number of a request that has a subscription already, and that of the limit.
func (s *Set) Add(id uint64, from Source) (*Subscription, error) {
	sub := &Subscription{id: id, from: from}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch weight := from.Weight(); {
	case s.subs[id] != nil:
		return nil, fmt.Errorf("%w: request %d was sent before", wire.ErrProtocol, id)
	case weight > 0 && s.weight > 0 && s.weight+weight > s.limit:
		return nil, limits.Exceeded(limits.Subscriptions, "this client has leases and watches of %d names, and may have %d", s.weight, s.limit)
	case s.subs == nil:
		s.subs = map[uint64]*Subscription{}
	}
	from.Open(func() { s.happened(sub) })
	s.subs[id] = sub
	s.weight += from.Weight()
	return sub, nil
}

// AddUnasked passes events on that no request asked for, with the number 0, until Stop. There is one such source at
// most, which has no weight; it is not among those that Len counts.
func (s *Set) AddUnasked(from Source) {
	sub := &Subscription{from: from, ready: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	from.Open(func() { s.happened(sub) })
	s.unasked = sub
}

// Begin lets the events of a subscription go out, now that its request has been answered.
func (s *Set) Begin(sub *Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub.ready = true
	if sub.from.Opening() || sub.woken {
		s.dueLocked(sub)
	}
}

// happened is told by a source that there is something to report. It returns at once.
func (s *Set) happened(sub *Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.woken {
		return
	}
	sub.woken = true
	if sub.ready {
		s.dueLocked(sub)
	}
}

// dueLocked has the events of a subscription sent.
func (s *Set) dueLocked(sub *Subscription) {
	s.due = append(s.due, sub)
	if !s.sending && !s.stopped {
		s.sending = true
		s.work.Add(1)
		go s.send()
	}
}

// Remove ends a subscription and reports whether there was one.
func (s *Set) Remove(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subs[id]
	if sub == nil {
		return false
	}
	sub.from.Close()
	delete(s.subs, id)
	s.weight -= sub.from.Weight()
	return true
}

// Stop ends all subscriptions; the sending goroutine ends by itself.
func (s *Set) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, sub := range s.subs {
		sub.from.Close()
	}
	if s.unasked != nil {
		s.unasked.from.Close()
	}
	s.subs, s.due, s.unasked = nil, nil, nil
}

// Has reports whether a request has a subscription.
func (s *Set) Has(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subs[id] != nil
}

// Len is the number of subscriptions, without that of destroyed objects: those who have references are counted by them.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.subs)
	if s.objects != nil {
		n--
	}
	return n
}

// Weight is what all subscriptions count together.
func (s *Set) Weight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.weight
}

// send sends what has happened until nothing is left.
func (s *Set) send() {
	defer s.work.Done()
	for {
		subs, more := s.take()
		if !more {
			return
		}
		for _, sub := range subs {
			if err := s.report(sub); err != nil {
				s.conn.Cut() // whoever reads the connection stops the set
				break
			}
		}
	}
}

// take returns the subscriptions that may have something to report, or false when the sending goroutine is to end.
func (s *Set) take() (subs []*Subscription, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || len(s.due) == 0 {
		s.sending = false
		return nil, false
	}
	for _, sub := range s.due {
		sub.woken = false
		if s.subs[sub.id] == sub || s.unasked == sub {
			subs = append(subs, sub)
		}
	}
	s.due = nil
	return subs, true
}

// report sends what has happened for one subscription.
func (s *Set) report(sub *Subscription) error {
	for _, event := range sub.from.Take() {
		body, err := message.Marshal(event)
		if err != nil {
			return err
		}
		if err := s.conn.Send(sub.id, body); err != nil {
			return err
		}
	}
	return nil
}
