package engine

import (
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Reservation is the memory of the owner that a request in flight takes of its limits. The zero Reservation is none.
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
