package session

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
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Session is one connected client. Everything that the client holds is held by its session and goes back when the
// connection ends.
//
// One goroutine reads. Short requests are answered by it, in order; long ones get a goroutine of their own, so that a
// waiting request holds up nobody. Calls that are short by experience are run by the reader too, as long as they stay
// short: see reading. An idle session is that goroutine, parked in the kernel's poller, and a descriptor.
type Session struct {
	of        *Register
	conn      inproc.Conn
	ID        uint64 // its number at this server
	since     time.Time
	overLimit bool // accepted over the limit of clients, to be refused
	Own       bool // of the server's own process, through the server: not counted as a client, and bound by no limits but those of frames

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc

	Events   subscription.Set // what the client hears of
	Leases   Leases           // the reader's alone
	Streams  Streams          // that run
	Kept     transfer.Kept    // memory of arguments that stays mapped
	Slabs    transfer.Slabs   // memory of results that is used again
	InFlight InFlight         // requests
	answers  answers

	active    atomic.Bool // a frame came since the last look for idle sessions
	idleTicks int         // looks since then; of whoever looks

	reading  reading
	work     sync.WaitGroup // long requests, and what sends events
	farewell sync.Once
	offers   atomic.Pointer[offering.Worker] // nil for a client that has never offered anything; set under mu

	mu      sync.Mutex
	label   string
	greeted bool // hellos were exchanged
}

var errGone = fmt.Errorf("%w: the client has gone", context.Canceled)

func newSession(r *Register, conn inproc.Conn, id uint64) *Session {
	ses := &Session{of: r, conn: conn, ID: id, since: time.Now()}
	ses.answers = answers{of: r, conn: conn, unread: r.Totals.Answers.Account()}
	ses.reading.ses = ses
	ses.ctx, ses.cancel = context.WithCancelCause(context.Background())
	ses.Events.Init(eventConn{ses}, r.Limits.Subscriptions, &ses.work)
	return ses
}

// run is the life of the session: handshake, requests, and release.
func (ses *Session) run() {
	if err := ses.handshake(); err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) { // it only looked whether somebody is there, or this server stops
			level = slog.LevelDebug
		}
		ses.of.Log.Log(ses.ctx, level, "client refused", "session", ses.ID, "pid", ses.conn.Peer().PID, "error", err)
		ses.end()
		return
	}
	ses.read()
}

// handshake checks the peer's credentials and exchanges hellos. A peer that is refused gets the error in answer to its
// hello: it might not see what was sent before.
func (ses *Session) handshake() error {
	agreed, err := message.ServerHandshake(ses.conn.(*wire.Conn), ses.of.Hello(), func(*message.Hello) error {
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
		ses.Kept.Allow(ses.of.Limits.KeptBytes, &ses.of.Totals.Kept)
	}
	if agreed.Has(message.FeaturePool) {
		ses.Events.AddUnasked(slabsSource{ses})
	}
	return nil
}

// allowed reports whether the peer may use this server: by what the kernel says of it, and by how many there are.
func (ses *Session) allowed() error {
	peer := ses.conn.Peer()
	if uid := peer.UID; !peer.SameUser() && !slices.Contains(ses.of.AllowUIDs, uid) {
		return fmt.Errorf("%w: this owner serves uid %d, the client runs as uid %d; start the owner with --allow-uid %d (ServerOptions.AllowUIDs) to let it in",
			status.ErrPermission, os.Geteuid(), uid, uid)
	}
	if ses.overLimit {
		ses.of.Totals.Refusals.Add(limits.Clients)
		return limits.Exceeded(limits.Clients, "this owner serves at most %d clients at once", ses.of.Limits.Clients)
	}
	return nil
}

// read takes frames until the connection ends, and then ends the session; or until another goroutine has taken the
// reading over.
func (ses *Session) read() {
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

var errSaidGoodbye = errors.New("the client said goodbye")

// take deals with one frame and reports whether the caller still reads. An error ends the session.
func (ses *Session) take(frame wire.Frame) (reading bool, err error) {
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

// discard gives back what a frame brought.
func discard(frame wire.Frame) {
	frame.Files.Close()
	frame.Charge.Release()
}

// eventConn sends the events of a session's subscriptions.
type eventConn struct{ ses *Session }

// Send implements subscription.Conn.
func (c eventConn) Send(request uint64, body []byte) error {
	return c.ses.conn.Send(wire.KindEvent, request, body)
}

// Cut implements subscription.Conn.
func (c eventConn) Cut() { c.ses.Cut() }
