package endpoint

import (
	"log/slog"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// newOwner returns a server without a socket.
func newOwner(opts ServerOptions) (*Server, error) {
	opts.Limits.defaults(opts.Devices)
	orDefault(&opts.Limits.Tasks, opts.Tasks.share())
	budget, why := memoryBudget(opts.Devices)
	from := budgets{results: opts.Results.budget(budget, why), tasks: opts.Tasks.budget(budget, why)}
	if opts.Logger == nil {
		opts.Logger = quiet(slog.Default())
	}
	devices, err := transfer.NewDevices(opts.Devices)
	if err != nil {
		return nil, err
	}
	intercept, err := chain(opts.Interceptors)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, log: opts.Logger, id: transfer.NewID(), devices: devices, budgets: from}
	s.newTotals()
	s.engine = newEngine(&s.opts, s.id, devices)
	s.endpoints = server.Endpoints{Registry: opts.Registry.registered(), Offers: newOffers(s)}
	s.models = server.NewModels(server.ModelsConfig{
		Log: s.log, Frame: s.opts.Limits.Wire, Devices: devices, Names: &s.engine.Names, Retain: opts.Retain,
		One: server.Bounds(opts.Limits.Publish), All: server.Bounds(opts.Limits.PublishTotal), Digest: module.Digests,
	})
	s.core = newCore(s, intercept)
	s.sessions = s.core.Sessions
	s.own = newClient(ClientOptions{
		Socket: opts.Socket, Devices: opts.Devices, Limits: opts.Limits.Wire, Label: opts.Label, Logger: opts.Logger,
	}, devices, s.sessions.ConnectSelf)
	s.caller = s.own.caller
	for _, dev := range opts.Devices {
		s.reclaims = append(s.reclaims, dev.OnRefused(s.trim))
	}
	return s, nil
}

// newTotals creates the limits that all clients share.
func (s *Server) newTotals() {
	l, few := &s.opts.Limits, int64(min(4096, transport.MaxOpenFiles()/16))
	s.totals = server.Totals{
		Totals: session.Totals{
			Files:    session.NewBudget("descriptors", int64(l.Descriptors), 0),
			Bodies:   session.NewBudget("bytes", l.RequestBytesTotal, 0),
			Answers:  session.NewBudget("bytes", l.AnswerBytesTotal, l.AnswerBytes),
			Rings:    session.NewBudget("bytes of rings", l.RingBytesTotal, 0),
			Refusals: status.NewRefusals(limitNames()...),
		},
		Kept:  transfer.MappingTotal{Most: few},
		Slabs: transfer.MappingTotal{Most: few, MostBytes: l.SlabBytesTotal},
	}
}

// newEngine returns the engine that runs the server's endpoints.
func newEngine(opts *ServerOptions, id string, devices transfer.Devices) *engine.Engine {
	return engine.New(engine.Config{
		Server: id, Log: opts.Logger, Devices: devices, Frame: opts.Limits.Wire,
		ResultBytes: opts.Limits.ObjectBytes, ResultBytesTotal: opts.Limits.ObjectBytesTotal,
		Results: engine.CacheBounds(opts.Results), Tasks: engine.TaskBounds(opts.Tasks),
	})
}

// newOffers returns the table of endpoints that clients offer.
func newOffers(s *Server) *offering.Table {
	l := &s.opts.Limits
	return offering.New(offering.Config{
		Log: s.log, Devices: s.devices, Refusals: s.totals.Refusals,
		Bounds: offering.Bounds{
			Endpoints: l.Offers, EndpointsTotal: l.OffersTotal, Bytes: l.OfferBytes, BytesTotal: l.OfferBytesTotal,
			Calls: l.WorkerCalls, Time: l.WorkerTime, ResultBytes: l.ObjectBytes,
		},
		Taken:     func(name string) bool { return s.opts.Registry.registered().Lookup([]byte(name)) != nil },
		Borrow:    s.engine.Names.Borrow,
		Withdrawn: func(name string) { s.engine.Results.InvalidateGroup(name) }, // the next worker may have a different function
	})
}

// newCore returns the part of the server that performs the operations of clients.
func newCore(s *Server, intercept Invoke) *server.Server {
	l := &s.opts.Limits
	c := server.Config{
		ID: s.id, Version: Version(), Log: s.log, Devices: s.devices, Engine: s.engine, Models: s.models, Endpoints: &s.endpoints, Totals: &s.totals,
		Limits:    server.Limits{Objects: l.Objects, Tasks: l.Tasks, KeptBytes: l.KeptBytes, SlabBytes: l.SlabBytes},
		Intercept: interceptServer(intercept),
		LimitUses: func() []message.LimitUse { return describeLimits(s) },
		Session: session.Config{
			Log: s.log, Socket: s.opts.Socket, Label: s.opts.Label, AllowUIDs: s.opts.AllowUIDs, Hello: s.hello, Totals: &s.totals.Totals,
			Limits: session.Limits{
				Wire: l.Wire, Clients: l.Clients, Requests: l.Requests, RequestTime: l.RequestTime, RequestBytes: l.RequestBytes,
				Subscriptions: l.Subscriptions, Idle: l.Idle,
			},
		},
	}
	if permit := s.opts.Offers; permit != nil {
		c.PermitOffer = func(client server.Peer, names []string) error { return permit(peerOf(client), names) }
	}
	return server.New(c)
}

// hello returns the server's hello.
func (s *Server) hello() message.Hello {
	return message.Hello{
		Server: s.id, Version: Version(), PID: int32(os.Getpid()), Label: status.ShortLabel(s.opts.Label), Devices: s.devices.Describe(),
		Features: s.features(), Catalog: s.models.CatalogID(),
	}
}

// features returns the server's protocol features. They include offers only if the server accepts them.
func (s *Server) features() []string {
	list := features(s.opts.Limits.Wire)
	if s.opts.Offers == nil {
		list = slices.DeleteFunc(list, func(f string) bool { return f == message.FeatureOffer })
	}
	return list
}
