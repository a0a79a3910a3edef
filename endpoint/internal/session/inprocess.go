package session

import (
	"context"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// serveWait is the time that a client of this process waits for Serve. Programs start both at the same time. A program that
// dials before it calls Serve receives an error with the remedy.
const serveWait = time.Second

// Connect starts a session for a client in this process. It waits for up to serveWait until the server serves. It returns
// the client's end of the pipe and the server's hello. The caller closes the pipe.
func (r *Register) Connect(ctx context.Context, hello message.Hello, frames wire.Limits) (*transport.Pipe, message.Hello, error) {
	limit := time.NewTimer(serveWait)
	defer limit.Stop()
	select {
	case <-r.accepting:
	case <-r.stopping:
	case <-limit.C:
		return nil, message.Hello{}, fmt.Errorf("%w on %s: the server of this process does not serve yet; call Serve in another goroutine before, or use the methods of the server",
			status.ErrUnavailable, r.Socket)
	case <-ctx.Done():
		return nil, message.Hello{}, fmt.Errorf("%w: %w", status.ErrUnavailable, ended.Cause(ctx))
	}
	mine, theirs := transport.NewPipe(r.Limits.Wire, frames)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return nil, message.Hello{}, fmt.Errorf("%w on %s: its owner has ended", status.ErrUnavailable, r.Socket)
	}
	if r.clientsLocked() >= r.Limits.Clients {
		r.Totals.Refusals.Add(status.LimitClients)
		return nil, message.Hello{}, status.Exceeded(status.LimitClients, "this owner serves at most %d clients at once", r.Limits.Clients)
	}
	ses := newSession(r, mine)
	r.nextID++
	ses.ID = r.nextID
	ses.Client = r.NewClient(ses)
	ses.label, ses.greeted = status.ShortLabel(hello.Label), true
	r.sessions[ses.ID] = ses
	go ses.read()
	return theirs, r.Hello(), nil
}

// ConnectSelf starts the session of the server's own client. It does not wait until the server serves, and the session
// is not counted as a client. The caller closes the pipe.
func (r *Register) ConnectSelf() (*transport.Pipe, message.Hello, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return nil, message.Hello{}, status.ErrServerClosing
	}
	theirs := r.selfPipe
	if r.selfPipe = nil; theirs == nil { // the previous connection is broken
		r.nextID++
		theirs = r.newSelfLocked()
	}
	r.sessions[r.self.ID] = r.self
	r.selves++
	go r.self.read()
	return theirs, r.Hello(), nil
}

// newSelfLocked creates the session of the server's own client and returns the client's end of its pipe.
func (r *Register) newSelfLocked() *transport.Pipe {
	mine, theirs := transport.NewPipe(r.Limits.Wire, r.Limits.Wire)
	r.self = newSession(r, mine)
	r.self.ID = r.nextID
	r.self.Own, r.self.greeted, r.self.label = true, true, status.ShortLabel(r.Label)
	r.self.answers.unread = nil // limits apply to clients only
	r.self.Events.limit = r.self.LimitOf(r.Limits.Subscriptions)
	r.self.Client = r.NewClient(r.self)
	return theirs
}
