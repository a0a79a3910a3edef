package session

import (
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Source is the source of a subscription's events. It holds a bounded number of events until they are taken.
type Source interface {
	// Weight returns the subscription's share of the limit: one for each name, or MaxNames for a watch of all names.
	Weight() int
	// Open starts the collection of events. The source calls wake when it has events, in any goroutine.
	Open(wake func())
	// Opening reports whether the source has events from the start.
	Opening() bool
	// Take returns the collected events as messages. Only the goroutine that sends calls it.
	Take() []any
	// Close ends the collection.
	Close()
}

// MaxNames is the maximum number of names in one watch. A watch of all names has this weight.
const MaxNames = 1024

// Events holds the subscriptions of one client: its watches, and one for each lease. Events wait in their sources, which
// keep only the newest. Therefore a slow client neither consumes memory nor delays others. A goroutine runs while there
// are events to send. Its methods are safe for concurrent use.
type Events struct {
	conn  eventConn
	limit int             // of weight
	work  *sync.WaitGroup // counts the sending goroutine

	mu       sync.Mutex
	subs     map[uint64]*Subscription // by request id
	weight   int                      // sum over all subscriptions
	due      []*Subscription          // subscriptions with events to send, each once
	sending  bool
	stopped  bool
	implicit *Subscription // subscription without a request; nil if there is none
}

// Subscription sends the events of a source to one request of the client.
type Subscription struct {
	id   uint64
	from Source

	// Guarded by Events.mu.
	ready bool // the request was answered: events may be sent
	woken bool // the source has had events since the last report
}

// eventConn sends events: a Session.
type eventConn interface {
	// sendEvent sends the body of an event of a request. An error ends the connection.
	sendEvent(request uint64, body []byte) error
	// Cut closes the connection.
	Cut()
}

// init initializes an empty set that sends through conn and has at most limit weight. The goroutine that sends is
// counted in work.
func (s *Events) init(conn eventConn, limit int, work *sync.WaitGroup) {
	s.conn, s.limit, s.work = conn, limit, work
}

// Add subscribes a request to a source. Events are held until Begin. It fails with [wire.ErrProtocol] if the request
// already has a subscription, and with the error of the limit.
func (s *Events) Add(id uint64, from Source) (*Subscription, error) {
	sub := &Subscription{id: id, from: from}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch weight := from.Weight(); {
	case s.subs[id] != nil:
		return nil, fmt.Errorf("%w: request %d already has a subscription", wire.ErrProtocol, id)
	case weight > 0 && s.weight > 0 && s.weight+weight > s.limit:
		return nil, status.Exceeded(status.LimitSubscriptions, "this client has leases and watches of %d names, the limit is %d", s.weight, s.limit)
	case s.subs == nil:
		s.subs = map[uint64]*Subscription{}
	}
	from.Open(func() { s.happened(sub) })
	s.subs[id] = sub
	s.weight += from.Weight()
	return sub, nil
}

// AddImplicit sends the events of a source with request id 0 until the session ends. A set has at most one such source. It has no
// weight and Len does not count it.
func (s *Events) AddImplicit(from Source) {
	sub := &Subscription{from: from, ready: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	from.Open(func() { s.happened(sub) })
	s.implicit = sub
}

// Begin starts to send the events of a subscription whose request was answered.
func (s *Events) Begin(sub *Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub.ready = true
	if sub.from.Opening() || sub.woken {
		s.dueLocked(sub)
	}
}

// happened is called by a source that has events. It returns at once.
func (s *Events) happened(sub *Subscription) {
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

// dueLocked queues a subscription and starts the sending goroutine if needed.
func (s *Events) dueLocked(sub *Subscription) {
	s.due = append(s.due, sub)
	if !s.sending && !s.stopped {
		s.sending = true
		s.work.Add(1)
		go s.send()
	}
}

// Remove ends a subscription and reports whether it existed.
func (s *Events) Remove(id uint64) bool {
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

// stop ends all subscriptions. The sending goroutine then ends.
func (s *Events) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, sub := range s.subs {
		sub.from.Close()
	}
	if s.implicit != nil {
		s.implicit.from.Close()
	}
	s.subs, s.due, s.implicit = nil, nil, nil
}

// Has reports whether a request has a subscription.
func (s *Events) Has(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subs[id] != nil
}

// Len returns the number of subscriptions that have a weight.
func (s *Events) Len() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if sub.from.Weight() > 0 {
			n++
		}
	}
	return n
}

// Weight returns the weight of all subscriptions.
func (s *Events) Weight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.weight
}

// send sends events until there are none left.
func (s *Events) send() {
	defer s.work.Done()
	for {
		subs, more := s.take()
		if !more {
			return
		}
		for _, sub := range subs {
			if err := s.report(sub); err != nil {
				s.conn.Cut() // the reader of the connection then stops the set
				break
			}
		}
	}
}

// take returns the subscriptions that may have events, or false if the sending goroutine must end.
func (s *Events) take() (subs []*Subscription, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || len(s.due) == 0 {
		s.sending = false
		return nil, false
	}
	for _, sub := range s.due {
		sub.woken = false
		if s.subs[sub.id] == sub || s.implicit == sub {
			subs = append(subs, sub)
		}
	}
	s.due = nil
	return subs, true
}

// report sends the events of one subscription.
func (s *Events) report(sub *Subscription) error {
	for _, event := range sub.from.Take() {
		body, err := message.MarshalShown(event)
		if err != nil {
			return err
		}
		if err := s.conn.sendEvent(sub.id, body); err != nil {
			return err
		}
	}
	return nil
}
