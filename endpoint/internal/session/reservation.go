package session

import "sync/atomic"

// Reservation is the share that one request in flight has of the session's and the server's limits. The zero value
// reserves nothing.
type Reservation struct {
	total *atomic.Int64 // sum of the session's reservations
	bytes int64         // of this reservation
	// frame ends the charge of the request's descriptors and body to the server's budgets; nil for none.
	frame func()
}

// Release returns the reservation to the session's total and the server's budgets. It is called once.
func (l *Reservation) Release() {
	if l.total != nil {
		l.total.Add(-l.bytes)
	}
	if l.frame != nil {
		l.frame()
	}
}
