package engine

import (
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Load is what a request makes the owner keep for as long as it is in flight. The zero load is none.
type Load struct {
	Of    *atomic.Int64 // of the session, all its loads together
	Bytes int64         // of this one
	// What its descriptors and its body count of the owner's budgets; nil for nothing.
	Files, Body *wire.Charge
}

// Lift takes the load off the session. It is called once.
func (l Load) Lift() {
	if l.Of != nil {
		l.Of.Add(-l.Bytes)
		l.Files.Release()
		l.Body.Release()
	}
}
