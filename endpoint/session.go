package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/subscription"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// session is one connected client. Everything that the client holds is held by its session and goes back when the
// connection ends.
//
// One goroutine reads. Short requests are answered by it, in order; long ones get a goroutine of their own, so that a
// waiting request holds up nobody. Calls that are short by experience are run by the reader too, as long as they stay
// short: see reading. An idle session is that goroutine, parked in the kernel's poller, and a descriptor.
type session struct {
	server    *Server
	conn      inproc.Conn
	id        uint64
	since     time.Time
	label     string
	overLimit bool // accepted over the limit of clients, to be refused
	own       bool // of the server's own process, through the server: not counted as a client, and bound by no limits but those of frames

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	leases map[uint64]uint64 // to the request that took it; the reader's alone

	events  subscription.Set
	offers  *offering.Worker // guarded by mu; nil for a client that has never offered anything
	streams streams

	kept         transfer.Kept  // memory of arguments that stays mapped
	slabs        transfer.Slabs // memory of results that is used again
	requestBytes atomic.Int64   // bytes of requests in flight
	answers      *wire.Account  // bytes of answers that are not sent yet

	active    atomic.Bool // a frame came since the last look for idle sessions
	idleTicks int         // looks since then; of whoever looks

	mu       sync.Mutex
	running  map[uint64]*callContext // long requests by frame id
	farewell sync.Once
	leaving  bool // goodbye was said: no new requests
	greeted  bool // hellos were exchanged

	reading reading

	work sync.WaitGroup // long requests, and what sends events
}

var errGone = fmt.Errorf("%w: the client has gone", context.Canceled)

func newSession(s *Server, conn inproc.Conn, id uint64) *session {
	ses := &session{server: s, conn: conn, id: id, since: time.Now(), answers: s.answers.Account()}
	ses.ctx, ses.cancel = context.WithCancelCause(context.Background())
	ses.events.Init(eventConn{ses}, s.opts.Limits.Subscriptions, &ses.work)
	return ses
}

// run is the life of the session: handshake, requests, and release.
func (ses *session) run() {
	if err := ses.handshake(); err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) { // it only looked whether somebody is there, or this server stops
			level = slog.LevelDebug
		}
		ses.server.log.Log(ses.ctx, level, "client refused", "session", ses.id, "pid", ses.conn.Peer().PID, "error", err)
		ses.end()
		return
	}
	ses.read()
}

// read takes frames until the connection ends, and then ends the session; or until another goroutine has taken the
// reading over.
func (ses *session) read() {
	for reading := true; reading; {
		frame, err := ses.conn.Receive()
		ses.active.Store(true)
		if err == nil {
			reading, err = ses.take(frame)
		}
		if err != nil {
			ses.closed(err)
			ses.end()
			return
		}
	}
}

// closed notes why the connection ended, and tells a peer that broke the protocol.
func (ses *session) closed(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, errSaidGoodbye) {
		return
	}
	peer := ses.conn.Peer()
	switch {
	case errors.Is(err, wire.ErrProtocol):
		ses.server.log.Warn("client broke the protocol", "session", ses.id, "pid", peer.PID, "error", err)
		refuse(ses.conn, err)
		return
	case errors.Is(err, wire.ErrTimeout):
		ses.server.log.Warn("client cut off", "session", ses.id, "pid", peer.PID, "error", err)
		refuse(ses.conn, err)
		return
	}
	ses.server.log.Debug("connection lost", "session", ses.id, "pid", peer.PID, "error", err)
}

// handshake checks the peer's credentials and exchanges hellos. A peer that is refused gets the error in answer to its
// hello: it might not see what was sent before.
func (ses *session) handshake() error {
	agreed, err := message.ServerHandshake(ses.conn.(*wire.Conn), ses.server.hello(), func(*message.Hello) error {
		if err := ses.allowed(); err != nil {
			return status.EncodeError(err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.label, ses.greeted = limits.ShortLabel(agreed.Peer.Label), true
	if agreed.Has(message.FeatureKeep) {
		ses.kept.Allow(ses.server.opts.Limits.KeptBytes, &ses.server.kept)
	}
	if agreed.Has(message.FeaturePool) {
		ses.events.AddUnasked(slabsSource{ses})
	}
	return nil
}

// allowed reports whether the peer may use this server: by what the kernel says of it, and by how many there are.
func (ses *session) allowed() error {
	opts, uid := &ses.server.opts, ses.conn.Peer().UID
	if !ses.conn.Peer().SameUser() && !slices.Contains(opts.AllowUIDs, uid) {
		return fmt.Errorf("%w: this owner serves uid %d, the client runs as uid %d; start the owner with --allow-uid %d (ServerOptions.AllowUIDs) to let it in",
			status.ErrPermission, os.Geteuid(), uid, uid)
	}
	if ses.overLimit {
		ses.server.refusals.Add(limits.Clients)
		return limits.Exceeded(limits.Clients, "this owner serves at most %d clients at once", opts.Limits.Clients)
	}
	return nil
}

// refuse tells a peer why the connection ends, if it listens.
func refuse(conn inproc.Conn, err error) {
	if body, encErr := message.Marshal(status.EncodeError(err)); encErr == nil {
		_ = conn.Send(wire.KindError, 0, body)
	}
}

var errSaidGoodbye = errors.New("the client said goodbye")

// take deals with one frame and reports whether the caller still reads. An error ends the session.
func (ses *session) take(frame wire.Frame) (reading bool, err error) {
	switch frame.Kind {
	case wire.KindRequest:
		return ses.request(frame)
	case wire.KindCancel:
		defer discard(frame)
		return true, ses.cancelRequest(frame)
	case wire.KindGoodbye:
		discard(frame)
		return true, errSaidGoodbye
	}
	discard(frame)
	return true, fmt.Errorf("%w: a client does not send %s frames", wire.ErrProtocol, frame.Kind)
}

// goodbye tells the client that the owner is leaving and ends the session when nothing of it is running any more. A
// client that waits for the owner's hello gets no goodbye, which it would not expect: for it there is no owner any
// more.
func (ses *session) goodbye() {
	ses.mu.Lock()
	ses.leaving = true
	greeted, idle := ses.greeted, len(ses.running) == 0
	ses.mu.Unlock()
	switch {
	case !greeted:
		ses.cut()
	case idle:
		ses.leave()
	default:
		go ses.sayGoodbye()
	}
}

// leave ends a session of which nothing runs any more, after the goodbye. A client that does not read must not hold up
// the others: the send has a goroutine of its own, and its time limit or somebody's cut ends it.
func (ses *session) leave() {
	go func() {
		ses.sayGoodbye()
		ses.cut()
	}()
}

// sayGoodbye sends the goodbye, once, and returns when it has been sent.
func (ses *session) sayGoodbye() {
	ses.farewell.Do(func() { _ = ses.conn.Send(wire.KindGoodbye, 0, nil) })
}

// cut ends the connection; the reading goroutine then ends the session.
func (ses *session) cut() { ses.conn.Close() }

// end gives back all that the client held.
func (ses *session) end() {
	ses.cancel(errGone)
	ses.conn.Close()
	ses.events.Stop()
	if w := ses.offered(); w != nil { // calls that wait for its answers hold up requests of other sessions
		w.End()
	}
	leases := ses.releaseAll()
	// A function that does not heed its context holds up neither leases nor objects; one that it makes after all is
	// released too.
	ses.work.Wait()
	leases += ses.releaseAll()
	ses.kept.Close()
	ses.slabs.Close()
	ses.server.log.Debug("session ended", "session", ses.id, "pid", ses.conn.Peer().PID, "leases", leases)
	ses.server.forget(ses)
}

// releaseAll releases the leases and objects of the session and returns how many leases there were.
func (ses *session) releaseAll() int {
	for _, obj := range ses.server.engine.Objects.ReleaseSession(ses.id) {
		ses.server.engine.Dispose(obj)
	}
	return ses.server.catalog.ReleaseHolder(ses.id)
}

// holder describes this session to the catalog.
func (ses *session) holder() catalog.Holder {
	peer := ses.conn.Peer()
	return catalog.Holder{ID: ses.id, PID: peer.PID, UID: peer.UID, Label: ses.label}
}

// holds notes which request took a lease: its events end with the lease.
func (ses *session) holds(lease, request uint64) {
	if ses.leases == nil {
		ses.leases = map[uint64]uint64{}
	}
	ses.leases[lease] = request
}

// forgetLease forgets a lease and returns the request that took it.
func (ses *session) forgetLease(lease uint64) uint64 {
	request := ses.leases[lease]
	delete(ses.leases, lease)
	return request
}

// eventConn sends the events of a session's subscriptions.
type eventConn struct{ ses *session }

// Send implements subscription.Conn.
func (c eventConn) Send(request uint64, body []byte) error {
	return c.ses.conn.Send(wire.KindEvent, request, body)
}

// Cut implements subscription.Conn.
func (c eventConn) Cut() { c.ses.cut() }
