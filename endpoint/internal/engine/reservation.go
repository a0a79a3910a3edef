package engine

import "sync/atomic"

// Reservation is the share that one request in flight has of the session's and the server's limits, in bytes. The zero
// value reserves nothing.
type Reservation struct {
	Total *atomic.Int64 // sum of the session's reservations
	Bytes int64         // of this reservation
	// Frame ends the charge of the request's descriptors and body to the server's budgets; nil for none.
	Frame func()
}

// Release returns the reservation to the session's total and the server's budgets. It is called once.
func (l Reservation) Release() {
	if l.Total != nil {
		l.Total.Add(-l.Bytes)
	}
	if l.Frame != nil {
		l.Frame()
	}
}
