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

// closed logs why the connection ended, and sends the error to a peer that violated the protocol.
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

// refuse sends the reason for closing the connection. Best effort.
func refuse(conn inproc.Conn, err error) {
	if body, encErr := message.Marshal(status.EncodeError(err)); encErr == nil {
		_ = conn.Send(wire.KindError, 0, body)
	}
}

// Goodbye sends a goodbye to the client and ends the session when its last request has completed. A client that has not
// received the owner's hello does not expect a goodbye; its connection is closed at once.
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

// GoodbyeWorker sends a goodbye to a worker after it has answered its calls or ctx ends. It returns at once.
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

// leave sends the goodbye and ends a session without requests in flight. The send runs in its own goroutine, because a
// client that does not read would delay others. The send's time limit or Cut ends it.
func (ses *Session) leave() {
	go func() {
		ses.sayGoodbye()
		ses.Cut()
	}()
}

// sayGoodbye sends the goodbye once and returns when it has been sent.
func (ses *Session) sayGoodbye() {
	ses.farewell.Do(func() { _ = ses.conn.Send(wire.KindGoodbye, 0, nil) })
}

// Cancel cancels the context of all requests of the session.
func (ses *Session) Cancel(cause error) { ses.cancel(cause) }

// Cut closes the connection; the reading goroutine then ends the session.
func (ses *Session) Cut() { ses.conn.Close() }

// end releases all resources of the client.
func (ses *Session) end() {
	ses.conn.Close()
	if w := ses.Offered(); w != nil { // before its requests are cancelled, so that callers get ErrWorkerGone
		w.End()
	}
	ses.cancel(errDisconnected)
	ses.Events.Stop()
	leases := ses.releaseAll()
	// A function that ignores its context must not delay the release of leases and objects. The second release covers
	// what such a function creates later.
	ses.work.Wait()
	leases += ses.releaseAll()
	ses.Kept.Close()
	ses.Slabs.Close()
	ses.of.Log.Debug("session ended", "session", ses.ID, "pid", ses.conn.Peer().PID, "leases", leases)
	ses.of.remove(ses)
}

// releaseAll releases the leases and objects of the session and returns the number of leases.
func (ses *Session) releaseAll() int {
	for _, obj := range ses.of.Engine.Objects.ReleaseSession(ses.ID) {
		ses.of.Engine.Dispose(obj)
	}
	return ses.of.Catalog.ReleaseHolder(ses.ID)
}
