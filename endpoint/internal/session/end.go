package session

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
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
func refuse(conn transport.Conn, err error) {
	if body, encErr := message.MarshalShown(status.EncodeError(err)); encErr == nil {
		_ = conn.Send(wire.KindError, 0, body)
	}
}

// Goodbye sends a goodbye to the client and ends the session when its last request has completed. The client closes the
// connection when it has received its answers. Until then, and for linger at most, its requests are refused with
// [status.ErrLeaving], so that none is lost between goodbye and close. Late operations are not refused. A client that has not
// received the owner's hello gets its goodbye after it.
func (ses *Session) Goodbye(linger time.Duration) {
	ses.mu.Lock()
	ses.linger = linger
	greeted := ses.greeted
	ses.mu.Unlock()
	idle := ses.InFlight.leave()
	switch {
	case idle:
		ses.leave()
	case greeted:
		go ses.sayGoodbye()
	}
}

// KeepOpen keeps the session open after its goodbye until the returned function is called, once. The client then has the
// linger time for late operations.
func (ses *Session) KeepOpen() (release func()) {
	ses.InFlight.keep(1)
	return func() {
		if ses.InFlight.keep(-1) {
			ses.leave()
		}
	}
}

// leave sends the goodbye and ends a session without requests in flight. The send runs in its own goroutine, because a
// client that does not read would delay others. The send's time limit or Cut ends it. A late request that arrives meanwhile
// is answered first.
func (ses *Session) leave() {
	ses.mu.Lock()
	greeted, linger := ses.greeted, ses.linger
	ses.mu.Unlock()
	go func() {
		if greeted {
			ses.sayGoodbye()
		}
		closed := time.NewTimer(linger)
		defer closed.Stop()
		select {
		case <-ses.ctx.Done():
		case <-closed.C:
		}
		if ses.InFlight.isOver() {
			ses.Cut()
		}
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
	ses.Client.Disconnected()
	ses.cancel(errDisconnected)
	ses.Events.stop()
	// A function that ignores its context must not delay the release of the client's resources. Close releases what such
	// a function creates later.
	ses.Client.Release()
	ses.work.Wait()
	ses.Client.Close()
	ses.of.Log.Debug("session ended", "session", ses.ID, "pid", ses.conn.Peer().PID)
	ses.of.remove(ses)
}
