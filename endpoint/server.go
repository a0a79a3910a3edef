package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/handover"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
)

// Server owns state dicts and shares them in place with other processes of the host. Its methods are safe for
// concurrent use.
type Server struct {
	*caller
	core    *server.Server
	own     *Client // client for this process's calls
	adopted []server.Adopted

	predecessor *handover.Predecessor // the owner that this server replaces; nil for none, or when it serves
	replacing   atomic.Bool           // a handover runs
}

// NewServer binds the socket and returns a server without models. Clients that connect before Serve wait in the
// kernel's queue. Publish before Serve so that the first client finds the models. Errors: [ErrInUse] if a live owner
// has the socket (see [ServerOptions].LockWait), [ErrPermission] if others may write to its directory, [ErrConfiguration]
// for invalid options.
func NewServer(opts ServerOptions) (*Server, error) {
	if opts.Local && (opts.Socket != "" || opts.Listener != nil) {
		return nil, status.Configuration(fmt.Errorf("%w: a local server has no socket", status.ErrInvalid))
	}
	s, err := newServer(opts)
	if err != nil || opts.Local {
		return s, err
	}
	if taken, err := s.takeOver(opts); taken || err != nil {
		return s.announced(err)
	}
	if err := s.core.Bind(opts.Listener); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if opts.Keep != nil {
		s.adopted, err = s.core.Models.Adopt(opts.Keep)
	}
	return s.announced(err)
}

// announced returns a server that has its socket. With an error it closes the server.
func (s *Server) announced(err error) (*Server, error) {
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.core.Announce()
	return s, nil
}

// newServer returns a server without a socket.
func newServer(opts ServerOptions) (*Server, error) {
	if err := checkPolicy(opts.Policy, opts.AllowUIDs); err != nil {
		return nil, err
	}
	if opts.RequireAudit && opts.Audit == nil {
		return nil, status.Configuration(fmt.Errorf("%w: RequireAudit without Audit", status.ErrInvalid))
	}
	if opts.Logger == nil {
		opts.Logger = quiet(slog.Default())
	}
	intercept, err := chain(opts.Interceptors)
	if err != nil {
		return nil, err
	}
	c := server.Config{
		Log: opts.Logger, Socket: opts.Socket, Label: opts.Label, AllowUIDs: opts.AllowUIDs, Devices: opts.Devices, Registry: opts.Registry.registered(),
		Limits: status.Limits(opts.Limits), Results: engine.CacheBounds(opts.Results), Tasks: engine.TaskBounds(opts.Tasks), Retain: opts.Retain,
		Places: placesOf(opts.Placements), RenewalTime: opts.RenewalTime, LockWait: opts.LockWait,
		Intercept: interceptServer(intercept), Policy: opts.Policy, Audit: opts.Audit, RequireAudit: opts.RequireAudit, LogLost: opts.LogLost,
	}
	if permit := opts.Offers; permit != nil {
		c.PermitOffer = func(client server.Peer, names []string) error { return permit(peerOf(client), names) }
	}
	core, err := server.New(c)
	if err != nil {
		return nil, err
	}
	devices, err := transfer.NewDevices(opts.Devices)
	if err != nil {
		return nil, err
	}
	own := newClient(ClientOptions{
		Socket: opts.Socket, Devices: opts.Devices, Limits: opts.Limits.Wire, Label: opts.Label, Logger: opts.Logger,
	}, devices, core.Sessions.ConnectSelf)
	core.OnClose = own.serverClosed
	s := &Server{caller: own.caller, core: core, own: own}
	core.OnServe = s.begin
	return s, nil
}

// placesOf converts the options of placements.
func placesOf(list []PlacementOptions) (out []server.PlaceOn) {
	for _, p := range list {
		out = append(out, server.PlaceOn(p))
	}
	return out
}

// ID returns the id of this server. A restarted owner has a new one.
func (s *Server) ID() string { return s.core.ID }

// Socket returns the path that clients dial.
func (s *Server) Socket() string { return s.core.Sessions.Socket }

// Adopted returns the versions of earlier servers that this server has adopted, sorted by name and number.
func (s *Server) Adopted() []AdoptedVersion {
	list := make([]AdoptedVersion, len(s.adopted))
	for i, a := range s.adopted {
		list[i] = AdoptedVersion{Name: a.Name, Version: a.Version, Current: a.Current, Source: a.Source, SourceID: a.SourceID}
	}
	return list
}

// Serve accepts clients until ctx ends or the server is closed. Call it once. When ctx ends, Serve shuts the server
// down, allows ten seconds for work in flight, and returns nil or the error of [Server.Shutdown]. After Shutdown or
// Close it returns [ErrServerClosed].
func (s *Server) Serve(ctx context.Context) error { return s.core.Serve(ctx) }

// Shutdown stops accepting, sends goodbye to every client, waits for requests and tasks in flight, and frees the
// server's resources. It does not wait for idle clients. If ctx ends first, running work is cancelled, has 50 ms to
// end, and Shutdown returns the cause of ctx. A result that a function returns after that is released. Memory that
// clients have attached stays valid.
func (s *Server) Shutdown(ctx context.Context) error { return s.core.Shutdown(ctx) }

// Close disconnects every client, cancels running work and frees the server's resources. Functions have one second to
// observe their context. A result that a function returns after that is released. A second Close returns nil.
func (s *Server) Close() error { return s.core.Close() }
