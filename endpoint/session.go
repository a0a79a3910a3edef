package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
)

// session is one connected client. Everything that the client holds is held by its session and goes back when the connection ends.
//
// One goroutine reads. Short requests are answered by it, in order; long ones get a goroutine of their own, so that a waiting
// request holds up nobody. An idle session is that goroutine, parked in the kernel's poller, and a descriptor.
type session struct {
	server  *Server
	conn    *wire.Conn
	id      uint64
	since   time.Time
	label   string
	surplus bool // there are as many clients as may be

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	leases map[uint64]uint64 // to the request that took it; the reader's alone

	events  events
	streams streams

	mu      sync.Mutex
	running map[uint64]context.CancelCauseFunc // long requests by frame id
	leaving bool                               // goodbye was said: no new requests

	work sync.WaitGroup // long requests and the event pump
}

var errGoexit = errors.New("the function called runtime.Goexit")

var errGone = fmt.Errorf("%w: the client has gone", context.Canceled)

func newSession(s *Server, conn *wire.Conn, id uint64) *session {
	ses := &session{server: s, conn: conn, id: id, since: time.Now()}
	ses.ctx, ses.cancel = context.WithCancelCause(context.Background())
	return ses
}

// run is the life of the session: introduction, requests, and giving back.
func (ses *session) run() {
	defer ses.end()
	if err := ses.introduce(); err != nil {
		ses.server.log.Warn("client refused", "session", ses.id, "pid", ses.conn.Peer().PID, "error", err)
		return
	}
	for {
		frame, err := ses.conn.Receive()
		if err != nil {
			ses.closed(err)
			return
		}
		if err := ses.take(frame); err != nil {
			ses.closed(err)
			return
		}
	}
}

// closed notes why the connection ended, and tells a peer that broke the protocol.
func (ses *session) closed(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, errSaidGoodbye) {
		return
	}
	peer := ses.conn.Peer()
	if errors.Is(err, wire.ErrProtocol) {
		ses.server.log.Warn("client broke the protocol", "session", ses.id, "pid", peer.PID, "error", err)
		refuse(ses.conn, err)
		return
	}
	ses.server.log.Debug("connection lost", "session", ses.id, "pid", peer.PID, "error", err)
}

// introduce checks who the peer is and exchanges hellos. A peer that is turned away is told so in answer to its hello: it might not see what
// was sent before.
func (ses *session) introduce() error {
	agreed, err := wire.ServerHandshake(ses.conn, ses.server.introduction(), func(*wire.Hello) error {
		if err := ses.allowed(); err != nil {
			return encodeError(err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.label = shortLabel(agreed.Peer.Label)
	return nil
}

// allowed tells whether the peer may use this server: by what the kernel says of it, and by how many there are.
func (ses *session) allowed() error {
	opts, uid := &ses.server.opts, ses.conn.Peer().UID
	if !ses.conn.Peer().SameUser() && !slices.Contains(opts.AllowUIDs, uid) {
		return fmt.Errorf("%w: this owner serves uid %d, the client runs as uid %d", ErrPermission, os.Geteuid(), uid)
	}
	if ses.surplus {
		return fmt.Errorf("%w: this owner serves at most %d clients at once", ErrLimit, opts.Limits.Clients)
	}
	return nil
}

// refuse tells a peer why the connection ends, if it listens.
func refuse(conn *wire.Conn, err error) {
	if body, encErr := wire.Marshal(encodeError(err)); encErr == nil {
		conn.Send(wire.KindError, 0, body)
	}
}

var errSaidGoodbye = errors.New("the client said goodbye")

// take deals with one frame. An error ends the session.
func (ses *session) take(frame wire.Frame) error {
	switch frame.Kind {
	case wire.KindRequest:
		return ses.request(frame)
	case wire.KindCancel:
		defer frame.Files.Close()
		ses.cancelRequest(frame.ID)
		return nil
	case wire.KindGoodbye:
		frame.Files.Close()
		return errSaidGoodbye
	}
	frame.Files.Close()
	return fmt.Errorf("%w: a client does not send %s frames", wire.ErrProtocol, frame.Kind)
}

// request answers one request, at once or in a goroutine of its own.
func (ses *session) request(frame wire.Frame) error {
	req, err := wire.ParseRequest(frame.Body)
	if err != nil {
		frame.Files.Close()
		return fmt.Errorf("%w: request %d: %w", wire.ErrProtocol, frame.ID, err)
	}
	ses.server.requests.Add(1)
	op, ok := operations[req.Op]
	if !ok {
		frame.Files.Close()
		return ses.fail(frame.ID, fmt.Errorf("%w: operation %d is not known to this owner", errors.ErrUnsupported, req.Op))
	}
	r := request{session: ses, id: frame.ID, body: req.Body, files: frame.Files}
	if !op.long {
		defer frame.Files.Close()
		return ses.answer(ses.ctx, op, r)
	}
	return ses.spawn(op, r, time.Duration(req.Timeout))
}

// spawn answers a long request in a goroutine of its own.
func (ses *session) spawn(op operation, r request, timeout time.Duration) error {
	ctx, cancel := context.WithCancelCause(ses.ctx)
	if err := ses.started(r.id, cancel); err != nil {
		cancel(err)
		r.files.Close()
		return ses.fail(r.id, err)
	}
	go func() {
		defer ses.work.Done()
		defer r.files.Close()
		defer cancel(nil)
		if timeout > 0 {
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, timeout)
			defer stop()
		}
		answered := false
		defer func() {
			if !answered { // a function ended its goroutine instead of returning
				ses.fail(r.id, errGoexit)
				ses.finished(r.id)
			}
		}()
		err := ses.answer(ctx, op, r)
		answered = true
		ses.finished(r.id)
		if err != nil {
			ses.cut() // the answer could not be sent: the reader ends the session
		}
	}()
	return nil
}

// started notes a long request so that it can be cancelled.
func (ses *session) started(id uint64, cancel context.CancelCauseFunc) error {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	switch {
	case ses.leaving:
		return fmt.Errorf("%w: the owner is shutting down", ErrUnavailable)
	case len(ses.running) >= ses.server.opts.Limits.Requests:
		return fmt.Errorf("%w: %d requests of this client are in flight", ErrLimit, len(ses.running))
	case ses.running[id] != nil:
		return fmt.Errorf("%w: request %d is in flight already", wire.ErrProtocol, id)
	}
	if ses.running == nil {
		ses.running = map[uint64]context.CancelCauseFunc{}
	}
	ses.running[id] = cancel
	ses.work.Add(1)
	return nil
}

// finished forgets a long request, and ends a session that was only waiting for it.
func (ses *session) finished(id uint64) {
	ses.mu.Lock()
	delete(ses.running, id)
	last := ses.leaving && len(ses.running) == 0
	ses.mu.Unlock()
	if last {
		ses.cut()
	}
}

func (ses *session) cancelRequest(id uint64) {
	ses.mu.Lock()
	cancel := ses.running[id]
	ses.mu.Unlock()
	if cancel != nil {
		cancel(context.Canceled)
	}
}

// answer runs the operation and sends what came of it. The error is of the connection, not of the operation.
func (ses *session) answer(ctx context.Context, op operation, r request) error {
	reply, err := op.call(ctx, r)
	if err != nil {
		return ses.fail(r.id, err)
	}
	if reply.done != nil {
		defer reply.done()
	}
	body, err := wire.MarshalPayload(reply.body)
	if err != nil {
		return ses.fail(r.id, fmt.Errorf("encode the answer: %w", err))
	}
	send := ses.conn.Send
	if !op.long { // the reader sends what it has before it waits: answers to requests that came together go out together
		send = ses.conn.SendLater
	}
	if err := send(wire.KindResponse, r.id, body, reply.files...); err != nil {
		if errors.Is(err, wire.ErrTooLarge) { // nothing was sent
			return ses.fail(r.id, err)
		}
		return err
	}
	if reply.after != nil {
		reply.after()
	}
	return nil
}

// fail answers a request with an error.
func (ses *session) fail(id uint64, err error) error {
	ses.server.failures.Add(1)
	body, encErr := wire.Marshal(encodeError(err))
	if encErr != nil {
		return encErr
	}
	return ses.conn.Send(wire.KindError, id, body)
}

// goodbye tells the client that the owner is leaving and ends the session when nothing of it is running any more.
func (ses *session) goodbye() {
	ses.mu.Lock()
	ses.leaving = true
	idle := len(ses.running) == 0
	ses.mu.Unlock()
	if idle {
		// A client that does not read must not hold up the others: the send has its own goroutine, and the cut ends it.
		go func() {
			ses.conn.Send(wire.KindGoodbye, 0, nil)
			ses.cut()
		}()
		return
	}
	go ses.conn.Send(wire.KindGoodbye, 0, nil)
}

// cut ends the connection; the reading goroutine then ends the session.
func (ses *session) cut() { ses.conn.Close() }

// end gives back all that the client held.
func (ses *session) end() {
	ses.cancel(errGone)
	ses.conn.Close()
	ses.events.stop()
	leases := ses.giveUp()
	// A function that does not heed its context holds up neither leases nor objects; one that it makes after all goes back too.
	ses.work.Wait()
	leases += ses.giveUp()
	ses.server.log.Debug("session ended", "session", ses.id, "pid", ses.conn.Peer().PID, "leases", leases)
	ses.server.forget(ses)
}

// giveUp gives back the leases and objects of the session and returns how many leases there were.
func (ses *session) giveUp() int {
	for _, obj := range ses.server.objects.releaseSession(ses.id) {
		ses.server.letGo(obj)
	}
	return ses.server.books.ReleaseHolder(ses.id)
}

// holder is how the books know this session.
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

// gaveBack forgets a lease and returns the request that took it.
func (ses *session) gaveBack(lease uint64) uint64 {
	request := ses.leases[lease]
	delete(ses.leases, lease)
	return request
}
