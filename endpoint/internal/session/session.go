package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Session is one connected client. It releases all resources of the client when the connection ends.
//
// One goroutine reads the connection. It answers short requests itself, in order. Others run in separate goroutines so
// that a waiting request does not delay others. The reader also runs requests that are expected to be brief; see
// readToken. An idle session costs one goroutine, parked in the kernel's poller, and one descriptor.
type Session struct {
	of      *Register
	conn    transport.Conn
	ID      uint64 // unique within this server
	since   time.Time
	refusal error // why the handshake refuses the client; nil for a client that may connect
	Own     bool  // session of the server's own client: not counted as a client, and exempt from all limits but the limits of frames

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc

	Client   Client   // what the server keeps for the client
	Events   Events   // subscriptions of the client
	InFlight InFlight // unanswered requests that run concurrently
	answers  answers

	active    atomic.Bool // a frame arrived since the last sweep for idle sessions
	idleTicks int         // sweeps since the last frame; owned by the sweep

	readToken readToken
	work      sync.WaitGroup // long requests and senders of events
	farewell  sync.Once

	mu      sync.Mutex
	label   string
	greeted bool          // hellos were exchanged
	linger  time.Duration // how long the client may take to close the connection after a goodbye
}

var errDisconnected = fmt.Errorf("%w: the client disconnected", context.Canceled)

func newSession(r *Register, conn transport.Conn) *Session {
	ses := &Session{of: r, conn: conn, since: time.Now()}
	ses.answers = answers{of: r, conn: conn, unread: r.Totals.Answers.Account()}
	ses.readToken.ses = ses
	ses.ctx, ses.cancel = context.WithCancelCause(context.Background())
	ses.Events.init(ses, r.Limits.Subscriptions, &ses.work)
	return ses
}

// run performs the handshake, reads requests until the connection ends, and releases the session.
func (ses *Session) run() {
	if err := ses.handshake(); err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) { // a probe for a running server, or this server is stopping
			level = slog.LevelDebug
		}
		ses.of.Log.Log(ses.ctx, level, "client refused", "session", ses.ID, "pid", ses.conn.Peer().PID, "error", err)
		ses.end()
		return
	}
	ses.read()
}

// handshake checks the peer's credentials and exchanges hellos. A refused peer gets the error as the answer to its
// hello, because it may not read anything sent earlier.
func (ses *Session) handshake() error {
	agreed, err := message.ServerHandshake(ses.conn.(*wire.Conn), ses.of.Hello(), func(*message.Hello) error {
		if ses.refusal != nil {
			return status.EncodeError(ses.refusal)
		}
		return nil
	})
	if err != nil {
		return err
	}
	ses.mu.Lock()
	ses.label, ses.greeted = status.ShortLabel(agreed.Peer.Label), true
	ses.mu.Unlock()
	ses.Client.Greeted(agreed)
	if ses.InFlight.Leaving() { // since before the hello
		go ses.sayGoodbye()
	}
	return nil
}

// allowed returns an error if the peer may not connect.
func (ses *Session) allowed() error {
	if ses.of.Admits != nil {
		return ses.of.Admits(ses)
	}
	return ses.AllowedUser()
}

// AllowedUser returns an error unless the peer is in this process, runs as the user of this process, or as one of
// [Config].AllowUIDs.
func (ses *Session) AllowedUser() error {
	if err := ses.Mapped(); err != nil {
		return err
	}
	peer := ses.conn.Peer()
	if ses.InProcess() || peer.Trusted(ses.of.AllowUIDs) {
		return nil
	}
	return fmt.Errorf("%w: this owner serves uid %d, the client runs as uid %d; start the owner with --allow-uid %d (ServerOptions.AllowUIDs) to let it in",
		status.ErrPermission, os.Geteuid(), peer.UID, peer.UID)
}

// Mapped returns an error if the user of the peer has no id in the user namespace of this process.
func (ses *Session) Mapped() error {
	if err := ses.conn.Peer().Mapped(); err != nil && !ses.InProcess() {
		return fmt.Errorf("%w: %w", status.ErrPermission, err)
	}
	return nil
}

// read receives frames until the connection ends, and then ends the session. It returns early if another goroutine has
// taken over the read loop.
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

// take handles one frame and reports whether the caller is still the reader. An error ends the session.
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

// discard releases the descriptors and the charge of a frame.
func discard(frame wire.Frame) {
	frame.Files.Close()
	if frame.Release != nil {
		frame.Release()
	}
}

// sendEvent sends the body of an event of a request.
func (ses *Session) sendEvent(request uint64, body []byte) error {
	return ses.conn.Send(wire.KindEvent, request, body)
}
