package session

import (
	"math"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Peer returns the client's credentials as reported by the kernel.
func (ses *Session) Peer() wire.Credentials { return ses.conn.Peer() }

// Label returns the client's label, truncated to the maximum length.
func (ses *Session) Label() string {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.label
}

// InProcess reports whether the client is in this process and therefore shares memory without export and import.
func (ses *Session) InProcess() bool {
	_, ok := ses.conn.(*inproc.Pipe)
	return ok
}

// LimitOf returns n, a limit of one client, or math.MaxInt for the server's own session, which has no limits.
func (ses *Session) LimitOf(n int) int {
	if ses.Own {
		return math.MaxInt
	}
	return n
}

// Holder describes the session to the catalog.
func (ses *Session) Holder() catalog.Holder {
	peer := ses.conn.Peer()
	return catalog.Holder{ID: ses.ID, PID: peer.PID, UID: peer.UID, Label: ses.Label()}
}

// Describe returns the session's identity and times, without its leases and objects.
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

// Worker returns the worker that holds the session's offers, and creates it on first use.
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

// Offered returns the worker of the session, or nil if the client has never offered an endpoint.
func (ses *Session) Offered() *offering.Worker { return ses.offers.Load() }

// Leases maps the leases of a client to the requests that acquired them. The events of a lease carry the id of its
// request.
type Leases struct{ by map[uint64]uint64 }

// Put records the request that acquired a lease.
func (l *Leases) Put(lease, request uint64) {
	if l.by == nil {
		l.by = map[uint64]uint64{}
	}
	l.by[lease] = request
}

// Drop removes a lease and returns the request that acquired it.
func (l *Leases) Drop(lease uint64) (request uint64) {
	request = l.by[lease]
	delete(l.by, lease)
	return request
}
