// Package server implements the operations that clients can request from an owner, by subject: models, calls, tasks,
// objects and offers. It also holds the owner's published models. Package session calls the operations through the
// interfaces that it defines.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config holds the settings of a server. The options with the same names in package endpoint document them.
type Config struct {
	Log       *slog.Logger       // for operators
	Socket    string             // path; set by Bind if empty
	Label     string             // name for people
	AllowUIDs []uint32           // users that may connect in addition to the server's own
	Devices   []driver.Device    // borrowed
	Registry  *engine.Registry   // nil for none
	Limits    status.Limits      // on clients
	Results   engine.CacheBounds // of the cache
	Tasks     engine.TaskBounds  // of the task manager
	Retain    catalog.Retention  // superseded versions that are kept without readers
	Places    []PlaceOn          // devices on which versions may have placements
	Intercept Intercept          // wraps calls; nil for none
	// RenewalTime is the time that readers of an earlier owner have to renew their leases; 0 means 10 s.
	RenewalTime time.Duration
	// LockWait is the time that Bind waits for an owner that still holds the socket.
	LockWait time.Duration
	// PermitOffer returns an error if the client may not offer the endpoints with the given names. If it is nil, no
	// client may.
	PermitOffer func(client Peer, names []string) error
	// Policy decides what clients may do; nil gives all rights to those that may connect. SetPolicy replaces it.
	Policy *access.Policy
	// Audit receives one line for each change by a client; nil for none.
	Audit *slog.Logger
	// RequireAudit refuses changes that cannot be recorded.
	RequireAudit bool
	// LogLost returns the number of lines of Log that were dropped; nil if unknown.
	LogLost func() uint64
}

// Totals count and bound the resources of all clients together.
type Totals struct {
	session.Totals
	Kept transfer.MappingTotal // memory of arguments and results that stays mapped
}

// Server performs the operations of an owner for the clients of its sessions.
type Server struct {
	Config
	ID        string            // of the server
	Engine    *engine.Engine    // runs endpoints and keeps results
	Models    *Models           // published versions
	Endpoints Endpoints         // callable endpoints
	Sessions  *session.Register // connected clients
	Totals    Totals            // of all clients
	OnServe   func() error      // called before clients are admitted; may be nil
	OnClose   func()            // called after the sessions have ended, before the versions are freed; may be nil

	devices transfer.Devices                // whose memory the server can share
	origin  struct{ results, tasks string } // of the limits on kept results, for reports
	reclaim []func()                        // unregister the callbacks for devices that run out of memory
	socket  *socket                         // nil if the server has no socket
	serving atomic.Bool                     // the server accepts clients
	started time.Time
	support support

	authority authority // decides what clients may do
	audited   auditLog
}

// New returns a server without clients and without a socket.
func New(c Config) (*Server, error) {
	devices, err := transfer.NewDevices(c.Devices)
	if err != nil {
		return nil, err
	}
	onDevices, err := places(c.Places, devices)
	if err != nil {
		return nil, err
	}
	c.Label = status.ShortLabel(c.Label)
	s := &Server{Config: c, ID: transfer.NewID(), devices: devices, started: time.Now()}
	s.authority.policy.Store(c.Policy)
	s.setDefaults()
	s.Totals = Totals{Totals: session.NewTotals(&s.Limits, limitNames()...)}
	s.Totals.Kept.Most, s.Totals.Kept.MostBytes = int64(min(4096, transport.MaxOpenFiles()/16)), s.Limits.KeptBytesTotal
	s.Engine = engine.New(engine.Config{Server: s.ID, Log: s.Log, Devices: devices, Limits: s.Limits, Results: s.Results, Tasks: s.Tasks})
	s.Endpoints = Endpoints{Registry: c.Registry, Offers: offering.New(offering.Config{
		Log: s.Log, Devices: devices, Refusals: s.Totals.Refusals, Limits: s.Limits,
		Taken:     func(name string) bool { return c.Registry.Lookup([]byte(name)) != nil },
		Borrow:    s.Engine.Names.Borrow,
		Withdrawn: func(name string) { s.Engine.Results.InvalidateGroup(name) }, // the next worker may have a different function
	})}
	s.Models = NewModels(ModelsConfig{
		Log: s.Log, Limits: s.Limits, Devices: devices, Names: &s.Engine.Names, Retain: c.Retain, RenewalTime: c.RenewalTime, Digest: module.Digests,
		Places: onDevices,
	})
	s.Sessions = session.NewRegister(session.Config{
		Log: s.Log, Socket: c.Socket, Label: c.Label, AllowUIDs: c.AllowUIDs, Admits: s.admits, Hello: s.hello, Limits: s.Limits, Totals: &s.Totals.Totals, NewClient: s.newClient,
	})
	s.Sessions.Operations = s.operations()
	for _, dev := range c.Devices {
		s.reclaim = append(s.reclaim, dev.OnRefused(s.trim))
	}
	return s, nil
}

// setDefaults sets the limits whose options are zero.
func (s *Server) setDefaults() {
	limitDefaults(&s.Limits, s.Devices)
	capacity := taskCapacity(s.Tasks.Capacity)
	orDefault(&s.Limits.Tasks, capacity-capacity/4)
	budget, why := memoryBudget(s.Devices)
	s.origin.results, s.origin.tasks = budgetOr(&s.Results.Bytes, budget, why), budgetOr(&s.Tasks.Bytes, budget, why)
}

// hello returns the server's hello. Its features include offers only if the server may accept them.
func (s *Server) hello() message.Hello {
	features := transport.Features(s.Limits.Wire)
	if s.PermitOffer == nil && s.authority.policy.Load() == nil {
		features = slices.DeleteFunc(features, func(f string) bool { return f == message.FeatureOffer })
	}
	return message.Hello{
		Server: s.ID, Version: transport.Version(), PID: int32(os.Getpid()), Label: s.Label, Devices: s.devices.Describe(),
		Features: features, Catalog: s.Models.CatalogID(),
	}
}

// Serve accepts clients until ctx ends, then shuts down and allows serveDrain for work in flight.
func (s *Server) Serve(ctx context.Context) error {
	if !s.Bound() {
		return status.Configuration(fmt.Errorf("%w: a local server cannot serve clients", status.ErrInvalid))
	}
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveDrain)
		defer cancel()
		drained <- s.Shutdown(limited)
	})
	var err error
	if s.OnServe != nil {
		err = s.OnServe()
	}
	if err == nil {
		err = s.accept()
	}
	if stop() {
		return err
	}
	if errors.Is(err, status.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, <-drained)
}

// serveDrain is the time that requests and tasks in flight have to finish after the context of Serve ends.
const serveDrain = 10 * time.Second

// Shutdown sends goodbye to every client, waits for requests and tasks in flight until ctx ends, and closes the server.
func (s *Server) Shutdown(ctx context.Context) error {
	return s.Drain(ctx, session.Linger, func() {})
}

// Drain is Shutdown. linger is the time that clients have to close their connections after the goodbye. Drain calls
// leaving when no further request begins.
func (s *Server) Drain(ctx context.Context, linger time.Duration, leaving func()) error {
	s.Models.Leave() // before sessions end and release their versions
	sessions := s.Stop()
	s.Models.StopDigests() // fail waiting requests at once
	s.Models.StopParts()
	for _, ses := range sessions {
		if !ses.Own { // this process may still watch its tasks end
			goodbyeWorker(ctx, ses, linger)
		}
	}
	leaving()
	select { // until then, functions of clients may call this server and start tasks
	case <-s.Sessions.Alone():
	case <-ctx.Done():
	}
	err := s.Engine.Tasks.Shutdown(ctx)
	for _, ses := range sessions {
		if ses.Own {
			ses.Goodbye(session.Linger)
		}
	}
	select {
	case <-s.Sessions.Done():
	case <-ctx.Done():
		err = ended.Cause(ctx)
	}
	return errors.Join(err, s.close(lateGrace))
}

// Close disconnects every client, cancels running work and frees the resources of the server.
func (s *Server) Close() error { return s.close(closeGrace) }

// close is Close with a given grace period.
func (s *Server) close(grace time.Duration) error {
	s.Models.Leave() // before sessions end and release their versions
	for _, ses := range s.Stop() {
		ses.Cancel(status.ErrServerClosing)
		ses.Cut()
	}
	s.Models.StopDigests()
	s.Models.StopParts()
	for _, remove := range s.reclaim {
		remove()
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Engine.Tasks.Shutdown(now) // returns the same error as now
	_ = s.Engine.Results.Close(now)  // the sessions wait for running builds
	select {
	case <-s.Sessions.Done():
	case <-time.After(grace):
		s.Log.Warn("functions of endpoints still run after the server has closed", "socket", s.Sessions.Socket)
	}
	if s.OnClose != nil {
		s.OnClose()
	}
	return s.Models.Close()
}

// Grace periods for functions to observe their context: in Close, and at the end of a Shutdown whose context has ended.
const (
	closeGrace = time.Second
	lateGrace  = closeGrace / 20
)

// trim frees about the given number of bytes of unused memory. It reports whether it freed any.
func (s *Server) trim(bytes int64) bool {
	slabs := s.trimSlabs()
	return s.Engine.Trim(bytes) || slabs > 0
}

// goodbyeWorker sends a goodbye to a client, which has the time linger to close the connection. A worker first answers
// its calls, until ctx ends. goodbyeWorker returns at once.
func goodbyeWorker(ctx context.Context, ses *session.Session, linger time.Duration) {
	w := clientOf(ses).worker()
	if w == nil {
		ses.Goodbye(linger)
		return
	}
	go func() {
		w.Finish(ctx)
		ses.Goodbye(linger)
	}()
}

// trimSlabs frees unused result memory and returns its size in bytes.
func (s *Server) trimSlabs() (bytes int64) {
	for _, ses := range s.Sessions.All() {
		bytes += clientOf(ses).slabs.Trim()
	}
	return bytes
}

// describeClients lists the sessions, the server's own first, without their leases and objects.
func (s *Server) describeClients() []message.SessionInfo {
	sessions := s.Sessions.All()
	list := make([]message.SessionInfo, len(sessions))
	for i, ses := range sessions {
		list[i] = clientOf(ses).describe()
	}
	return list
}
