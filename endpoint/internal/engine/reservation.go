package engine

import (
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Reservation counts the bytes that one request in flight uses of its session's and the owner's limits. The zero value
// reserves nothing.
type Reservation struct {
	Total *atomic.Int64 // the session's total, all its reservations together
	Bytes int64         // of this one
	// What its descriptors and its body take of the owner's budgets; nil for nothing.
	Files, Body *wire.Charge
}

// Release gives the reservation back to the session's total and the owner's budgets. It is called once.
func (l Reservation) Release() {
	if l.Total != nil {
		l.Total.Add(-l.Bytes)
		l.Files.Release()
		l.Body.Release()
	}
}
