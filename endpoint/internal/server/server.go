// Package server implements the operations that clients can request from an owner, by subject: models, calls, tasks,
// objects and offers. It also holds the owner's published models. Package session calls the operations through the
// interfaces that it defines.
package server

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config holds the parts and the settings of a server.
type Config struct {
	ID        string           // of the server
	Version   string           // of this module
	Log       *slog.Logger     // for operators
	Devices   transfer.Devices // whose memory the server can share
	Engine    *engine.Engine   // runs endpoints and keeps results
	Models    *Models          // published versions
	Endpoints *Endpoints       // callable endpoints
	Limits    Limits           // of one client
	Totals    *Totals          // of all clients
	Intercept Intercept        // wraps calls; nil for none
	// PermitOffer returns an error if the client may not offer the endpoints with the given names. If it is nil, no
	// client may.
	PermitOffer func(client Peer, names []string) error
	// LimitUses returns what is used of each limit.
	LimitUses func() []message.LimitUse
	// Session configures the sessions. New sets its operations and its clients.
	Session session.Config
}

// Limits bound the resources of one client. The server's limits with the same names document them.
type Limits struct {
	Objects   int   // references to managed objects
	Tasks     int   // that have not ended
	KeptBytes int64 // of arguments that stay mapped; negative for none
	SlabBytes int64 // of result memory that is reused; negative for none
}

// Totals count and bound the resources of all clients together.
type Totals struct {
	session.Totals
	Kept  transfer.MappingTotal // memory of arguments that stays mapped
	Slabs transfer.MappingTotal // result memory that is reused
}

// Server performs the operations of an owner for the clients of its sessions.
type Server struct {
	Config
	Sessions *session.Register // connected clients
	Bound    bool              // the server has a socket; set before Serving
	Serving  atomic.Bool       // the server accepts clients
	started  time.Time
	support  support
}

// New returns a server without clients.
func New(c Config) *Server {
	s := &Server{Config: c, started: time.Now()}
	c.Session.NewClient = s.newClient
	c.Session.Operations = s.operations()
	s.Sessions = session.NewRegister(c.Session)
	return s
}

// GoodbyeWorker sends a goodbye to a client. A worker first answers its calls, until ctx ends. GoodbyeWorker returns at
// once.
func GoodbyeWorker(ctx context.Context, ses *session.Session) {
	w := clientOf(ses).worker()
	if w == nil {
		ses.Goodbye()
		return
	}
	go func() {
		w.Finish(ctx)
		ses.Goodbye()
	}()
}

// TrimSlabs frees unused result memory and returns its size in bytes.
func (s *Server) TrimSlabs() (bytes int64) {
	for _, ses := range s.Sessions.All() {
		bytes += clientOf(ses).slabs.Trim()
	}
	return bytes
}

// Describe lists the sessions, the server's own first, without their leases and objects.
func (s *Server) Describe() []message.SessionInfo {
	sessions := s.Sessions.All()
	list := make([]message.SessionInfo, len(sessions))
	for i, ses := range sessions {
		list[i] = clientOf(ses).describe()
	}
	return list
}
