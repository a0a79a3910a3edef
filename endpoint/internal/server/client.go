package server

import (
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// client holds the state of one session's client.
type client struct {
	server  *Server
	session *session.Session

	leases  leases
	streams streams                       // running streams
	kept    transfer.Kept                 // memory of arguments that stays mapped
	inline  bool                          // small memory may be within frames
	slabs   transfer.Slabs                // result memory that is reused or sent again
	objects atomic.Pointer[objectsSource] // receives destroyed objects; nil if not subscribed

	grants  atomic.Pointer[grants] // rights by the current policy; nil before the first request under it
	refused atomic.Uint32          // bits of the rights whose refusal was logged

	offers atomic.Pointer[offering.Worker] // nil for a client that has never offered anything; the reader sets it
}

// newClient implements the method of [session.Config].
func (s *Server) newClient(ses *session.Session) session.Client {
	if ses.Own {
		s.Engine.Memory.Exempt(ses.ID)
	}
	return &client{server: s, session: ses}
}

// clientOf returns what the server keeps for the client of a session.
func clientOf(ses *session.Session) *client { return ses.Client.(*client) }

// Greeted implements session.Client.
func (c *client) Greeted(agreed *message.Agreement) {
	if agreed.Has(message.FeatureKeep) {
		c.kept.Allow(c.server.Limits.KeptBytes, &c.server.Totals.Kept)
	}
	c.inline = agreed.Has(message.FeatureInline)
	if agreed.Has(message.FeaturePool) {
		c.session.Events.AddImplicit(slabsSource{c})
		if agreed.Has(message.FeatureRepeat) {
			c.slabs.AllowRepeats()
		}
	}
}

// caller describes the client for its arguments.
func (c *client) caller() engine.Caller {
	return engine.Caller{Session: c.session.ID, Kept: &c.kept, Inline: c.inline}
}

// Uses implements session.Client.
func (c *client) Uses(request uint64) bool {
	w := c.worker()
	return w != nil && w.Has(request)
}

// Busy implements session.Client.
func (c *client) Busy() bool {
	if w := c.worker(); w != nil {
		if offered, _ := w.Offered(); offered > 0 || w.Running() > 0 {
			return true
		}
	}
	return c.server.Engine.Objects.HeldBy(c.session.ID) > 0
}

// Disconnected implements session.Client. Callers of the client's endpoints get ErrWorkerGone.
func (c *client) Disconnected() {
	if w := c.worker(); w != nil {
		for _, name := range w.Names() {
			c.audit(changeOfferEnds, "name", name)
		}
		w.End()
	}
}

// Release implements session.Client.
func (c *client) Release() {
	c.server.Engine.ReleaseSession(c.session.ID)
	c.server.Models.Catalog.ReleaseHolder(c.session.ID)
}

// Close implements session.Client.
func (c *client) Close() {
	c.Release()
	c.kept.Close()
	c.slabs.Close()
}

// newWorker returns the worker that holds the client's offers, and creates it on first use. The reader calls it.
func (c *client) newWorker() *offering.Worker {
	if w := c.worker(); w != nil {
		return w
	}
	ses, peer := c.session, c.session.Peer()
	w := c.server.Endpoints.Offers.NewWorker(ses, message.EndpointWorker{
		Session: ses.ID, PID: peer.PID, UID: peer.UID, Label: ses.Label(), Since: ses.Since().UnixNano(),
	})
	w.Inline = c.inline
	c.offers.Store(w)
	return w
}

// worker returns the worker of the client, or nil if the client has never offered an endpoint.
func (c *client) worker() *offering.Worker { return c.offers.Load() }

// holder describes the client to the catalog.
func (c *client) holder() catalog.Holder {
	peer := c.session.Peer()
	return catalog.Holder{ID: c.session.ID, PID: peer.PID, UID: peer.UID, Label: c.session.Label()}
}

// describe returns the client's identity and times, without its leases and objects.
func (c *client) describe() message.SessionInfo {
	ses, peer := c.session, c.session.Peer()
	var offers int
	if w := c.worker(); w != nil {
		offers, _ = w.Offered()
	}
	return message.SessionInfo{
		Session: ses.ID, Self: ses.Own, PID: peer.PID, UID: peer.UID, Label: ses.Label(), Since: ses.Since().UnixNano(),
		Requests: uint64(ses.InFlight.Count()), Offers: uint64(offers),
	}
}

// leases maps the leases of a client to the requests that acquired them. The events of a lease carry the id of its
// request.
type leases struct {
	mu sync.Mutex
	by map[uint64]uint64
}

// put records the request that acquired a lease.
func (l *leases) put(lease, request uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[uint64]uint64{}
	}
	l.by[lease] = request
}

// drop removes a lease and returns the request that acquired it.
func (l *leases) drop(lease uint64) (request uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	request = l.by[lease]
	delete(l.by, lease)
	return request
}
