package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A call that is not sent leaves the result memory that it was to return for the next request.
func TestReturnsOfUnsentCall(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	conn := w.conn
	conn.pools = true
	conn.slabs.Allow(func() {}, true)
	back := transfer.SlabReturns{Returned: []uint64{3, 4}, Dropped: []uint64{5}}
	conn.slabs.RestoreReturns(back)
	conn.mu.Lock()
	conn.endLocked(errOwnerLeft)
	conn.mu.Unlock()
	_, _, err := conn.ask(t.Context(), &Request{Op: message.OpCall, Calls: true, Callee: message.Call{Endpoint: "f"}})
	require.True(t, NotSent(err))
	require.Equal(t, back, conn.slabs.TakeReturns())
}
