package natslink

import (
	"cmp"
	"context"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// pendingEvery is the interval at which the bytes that wait for clients are added up.
	pendingEvery = 100 * time.Millisecond
	// pendingListed is the number of clients with the most waiting bytes that are looked at.
	pendingListed = 1024
	// pendingParts is the number of clients that may have the largest number of waiting bytes at once.
	pendingParts = 4
)

// clientPending returns the maximum number of bytes that wait for one client. NATS disconnects a client at this limit.
func (o ServerOptions) clientPending() int64 {
	least := 2 * int64(cmp.Or(o.MaxPayload, DefaultMaxPayload))
	return max(least, min(server.MAX_PENDING_SIZE, o.Pending/pendingParts))
}

// boundPending disconnects the clients with the most waiting bytes while those of all clients exceed the limit. It runs until ctx
// ends.
func (a *allowed) boundPending(ctx context.Context, opts ServerOptions) {
	tick := time.NewTicker(pendingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ns := a.listener.Load()
		if int64(ns.NumClients())*opts.clientPending() <= opts.Pending {
			continue
		}
		for _, id := range a.overPending(ns, opts.Pending) {
			_ = ns.DisconnectClientByID(id) // fails for a client that has left
		}
	}
}

// overPending returns the admitted clients without which the waiting bytes are within the limit, those with the most bytes first.
func (a *allowed) overPending(ns *server.Server, limit int64) (over []uint64) {
	list, err := ns.Connz(&server.ConnzOptions{Sort: server.ByPending, Limit: pendingListed})
	if err != nil {
		return nil // the server stops
	}
	total := int64(0)
	for _, c := range list.Conns {
		total += int64(c.Pending)
	}
	admitted := a.snapshot()
	for _, c := range list.Conns {
		if total <= limit {
			break
		}
		if _, is := admitted[c.Cid]; is { // connections of this process stay
			over = append(over, c.Cid)
			total -= int64(c.Pending)
		}
	}
	return over
}
