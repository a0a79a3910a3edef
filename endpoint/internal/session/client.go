package session

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Peer is what the kernel says of the client.
func (ses *Session) Peer() wire.Credentials { return ses.conn.Peer() }

// Label is what the client calls itself, cut to what is kept of it.
func (ses *Session) Label() string {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.label
}

// InProcess reports whether the client is in this process, and so shares memory without export and import.
func (ses *Session) InProcess() bool {
	_, ok := ses.conn.(*inproc.Pipe)
	return ok
}

// Holder describes the session to the catalog.
func (ses *Session) Holder() catalog.Holder {
	peer := ses.conn.Peer()
	return catalog.Holder{ID: ses.ID, PID: peer.PID, UID: peer.UID, Label: ses.Label()}
}

// Describe is what is known of a session without what it holds.
func (ses *Session) Describe() message.SessionInfo {
	var offers int
	if w := ses.Offered(); w != nil {
		offers, _ = w.Offered()
	}
	peer := ses.conn.Peer()
	return message.SessionInfo{
		Session: ses.ID, Self: ses.Own, PID: peer.PID, UID: peer.UID, Label: ses.Label(), Since: ses.since.UnixNano(),
		Requests: uint64(ses.InFlight.Count()), Offers: uint64(offers),
	}
}

// Worker is the session as a client that offers endpoints.
func (ses *Session) Worker() *offering.Worker {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if w := ses.offers.Load(); w != nil {
		return w
	}
	peer := ses.conn.Peer()
	w := ses.of.Offers.NewWorker(ses.conn, message.EndpointWorker{
		Session: ses.ID, PID: peer.PID, UID: peer.UID, Label: ses.label, Since: ses.since.UnixNano(),
	})
	ses.offers.Store(w)
	return w
}

// Offered is Worker without making one: nil for a session that has never offered anything.
func (ses *Session) Offered() *offering.Worker { return ses.offers.Load() }

// Leases are those that a client has, and the requests that took them: the events of a lease end with it.
type Leases struct{ by map[uint64]uint64 }

// Put notes which request took a lease.
func (l *Leases) Put(lease, request uint64) {
	if l.by == nil {
		l.by = map[uint64]uint64{}
	}
	l.by[lease] = request
}

// Drop forgets a lease and returns the request that took it.
func (l *Leases) Drop(lease uint64) (request uint64) {
	request = l.by[lease]
	delete(l.by, lease)
	return request
}
