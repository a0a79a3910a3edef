package session

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// closed notes why the connection ended, and tells a peer that broke the protocol.
func (ses *Session) closed(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, errSaidGoodbye) {
		return
	}
	log, peer := ses.of.Log, ses.conn.Peer()
	switch {
	case errors.Is(err, wire.ErrProtocol):
		log.Warn("client broke the protocol", "session", ses.ID, "pid", peer.PID, "error", err)
		refuse(ses.conn, err)
		return
	case errors.Is(err, wire.ErrTimeout):
		log.Warn("client cut off", "session", ses.ID, "pid", peer.PID, "error", err)
		refuse(ses.conn, err)
		return
	}
	log.Debug("connection lost", "session", ses.ID, "pid", peer.PID, "error", err)
}

// refuse tells a peer why the connection ends, if it listens.
func refuse(conn inproc.Conn, err error) {
	if body, encErr := message.Marshal(status.EncodeError(err)); encErr == nil {
		_ = conn.Send(wire.KindError, 0, body)
	}
}

// Goodbye tells the client that the owner is leaving and ends the session when nothing of it is running any more. A
// client that waits for the owner's hello gets no goodbye, which it would not expect: for it there is no owner any
// more.
func (ses *Session) Goodbye() {
	idle := ses.InFlight.leave()
	ses.mu.Lock()
	greeted := ses.greeted
	ses.mu.Unlock()
	switch {
	case !greeted:
		ses.Cut()
	case idle:
		ses.leave()
	default:
		go ses.sayGoodbye()
	}
}

// GoodbyeWorker is Goodbye to a worker when it has answered the calls that it has, or ctx ends. It does not wait.
func (ses *Session) GoodbyeWorker(ctx context.Context) {
	w := ses.Offered()
	if w == nil {
		ses.Goodbye()
		return
	}
	go func() {
		w.Finish(ctx)
		ses.Goodbye()
	}()
}

// leave ends a session of which nothing runs any more, after the goodbye. A client that does not read must not hold up
// the others: the send has a goroutine of its own, and its time limit or somebody's cut ends it.
func (ses *Session) leave() {
	go func() {
		ses.sayGoodbye()
		ses.Cut()
	}()
}

// sayGoodbye sends the goodbye, once, and returns when it has been sent.
func (ses *Session) sayGoodbye() {
	ses.farewell.Do(func() { _ = ses.conn.Send(wire.KindGoodbye, 0, nil) })
}

// Cancel ends the context of all that runs for the session.
func (ses *Session) Cancel(cause error) { ses.cancel(cause) }

// Cut ends the connection; the reading goroutine then ends the session.
func (ses *Session) Cut() { ses.conn.Close() }

// end gives back all that the client held.
func (ses *Session) end() {
	ses.cancel(errGone)
	ses.conn.Close()
	ses.Events.Stop()
	if w := ses.Offered(); w != nil { // calls that wait for its answers hold up requests of other sessions
		w.End()
	}
	leases := ses.releaseAll()
	// A function that does not heed its context holds up neither leases nor objects; one that it makes after all is
	// released too.
	ses.work.Wait()
	leases += ses.releaseAll()
	ses.Kept.Close()
	ses.Slabs.Close()
	ses.of.Log.Debug("session ended", "session", ses.ID, "pid", ses.conn.Peer().PID, "leases", leases)
	ses.of.forget(ses)
}

// releaseAll releases the leases and objects of the session and returns how many leases there were.
func (ses *Session) releaseAll() int {
	for _, obj := range ses.of.Engine.Objects.ReleaseSession(ses.ID) {
		ses.of.Engine.Dispose(obj)
	}
	return ses.of.Catalog.ReleaseHolder(ses.ID)
}
