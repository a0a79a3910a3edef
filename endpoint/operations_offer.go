package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// AllowOffers lets every client that may connect offer endpoints: for [ServerOptions].
func AllowOffers(Peer, []string) error { return nil }

// newOffers is the table of what the clients of a server offer.
func newOffers(s *Server) *offering.Table {
	l := &s.opts.Limits
	return offering.New(offering.Config{
		Devices: s.devices, Refusals: s.refusals,
		Bounds: offering.Bounds{
			Endpoints: l.Offers, EndpointsTotal: l.OffersTotal, Bytes: l.OfferBytes, BytesTotal: l.OfferBytesTotal,
			Calls: l.WorkerCalls, Time: l.WorkerTime, ResultBytes: l.ObjectBytes,
		},
		Taken:     func(name string) bool { return s.registry.lookup([]byte(name)) != nil },
		Borrow:    s.engine.Names.Borrow,
		Withdrawn: func(name string) { s.engine.Results.InvalidateGroup(name) }, // the next worker may have another function
	})
}

// find returns the endpoint of that name, the server's own or one of a worker.
func (s *Server) find(name string) (*engine.Definition, error) {
	d, err := s.registry.find(name)
	if err == nil {
		return d, nil
	}
	if d := s.offers.Lookup(name); d != nil {
		return d, nil
	}
	return nil, err
}

// lookup is find for a name that is a part of a message; nil where there is no such endpoint.
func (s *Server) lookup(name []byte) *engine.Definition {
	if d := s.registry.lookup(name); d != nil {
		return d
	}
	return s.offers.Lookup(string(name))
}

// endpoints lists the server's own endpoints, and then those of workers, each in the order of their names.
func (s *Server) endpoints() []*engine.Definition {
	return append(s.registry.list(), s.offers.List()...)
}

// worker is the session as a client that offers endpoints.
func (ses *session) worker() *offering.Worker {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.offers == nil {
		peer := ses.conn.Peer()
		ses.offers = ses.server.offers.NewWorker(ses.conn, message.EndpointWorker{
			Session: ses.id, PID: peer.PID, UID: peer.UID, Label: ses.label, Since: ses.since.UnixNano(),
		})
	}
	return ses.offers
}

// offered is worker without making one: nil for a session that has never offered anything.
func (ses *session) offered() *offering.Worker {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.offers
}

// offerings are how many endpoints the client offers, and the bytes of their descriptions.
func (ses *session) offerings() (endpoints int, bytes int64) {
	if w := ses.offered(); w != nil {
		return w.Offered()
	}
	return 0, 0
}

// doOffer takes endpoints whose functions the client runs.
func doOffer(_ context.Context, r request) (reply, error) {
	in, err := r.permittedOffer()
	if err != nil {
		return reply{}, err
	}
	ses := r.session
	w := ses.worker()
	calls, err := w.Offer(r.id, in)
	if err != nil {
		return reply{}, err
	}
	return reply{
		body: message.Offering{Calls: uint64(calls)},
		after: func() {
			for _, e := range in.Endpoints {
				ses.server.log.Info("offered", "endpoint", e.Name, "session", ses.id, "pid", ses.conn.Peer().PID)
			}
			w.Begin(r.id)
		},
		undo: func() { w.Withdraw(r.id) },
	}, nil
}

// permittedOffer is the offer of a request, if the server takes it from this client.
func (r request) permittedOffer() (*message.Offer, error) {
	ses := r.session
	switch permit := ses.server.opts.Offers; {
	case permit == nil:
		return nil, fmt.Errorf("%w: this owner takes no offers of endpoints; start it with --offers (ServerOptions.Offers)", errors.ErrUnsupported)
	case ses.inProcess():
		return nil, fmt.Errorf("%w: a client of the owner's own process registers its functions in the owner's registry", errors.ErrUnsupported)
	case ses.isLeaving():
		return nil, fmt.Errorf("%w: the owner is shutting down", status.ErrUnavailable)
	default:
		in := new(message.Offer)
		if err := r.decode(in); err != nil {
			return nil, err
		}
		names := make([]string, len(in.Endpoints))
		for i, e := range in.Endpoints {
			names[i] = e.Name
		}
		if err := permit(ses.peer(), names); err != nil {
			return nil, status.WithClass(status.ErrPermission, fmt.Errorf("this owner does not take the offer: %w", err))
		}
		return in, nil
	}
}

// doAnswer takes what a worker answers to a call.
func doAnswer(ctx context.Context, r request) (reply, error) {
	in, err := message.ParseAnswer(r.body)
	if err != nil {
		return reply{}, err
	}
	w := r.session.offered()
	if w == nil {
		return reply{}, fmt.Errorf("%w: this client has no calls to answer, for it offers nothing", status.ErrNotFound)
	}
	if err := w.Answer(ctx, &in, r.files); err != nil {
		return reply{}, err
	}
	return reply{body: message.Answered{}}, nil
}

// isLeaving reports whether goodbye was said.
func (ses *session) isLeaving() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.leaving
}

// peer is the session's client as functions of the program see it.
func (ses *session) peer() Peer {
	peer := ses.conn.Peer()
	return Peer{PID: peer.PID, UID: peer.UID, GID: peer.GID, Session: ses.id, Label: ses.label}
}

// goodbyeWorker says goodbye to a worker when it has answered the calls that it has, or ctx ends. It does not wait.
func (ses *session) goodbyeWorker(ctx context.Context) {
	w := ses.offered()
	if w == nil {
		ses.goodbye()
		return
	}
	go func() {
		w.Finish(ctx)
		ses.goodbye()
	}()
}
