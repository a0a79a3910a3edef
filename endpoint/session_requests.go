package endpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/bufpool"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// request answers one request, or has it answered, and reports whether the caller still reads.
func (ses *session) request(frame wire.Frame) (reading bool, err error) {
	if err := ses.checkID(frame.ID); err != nil {
		discard(frame)
		return true, err
	}
	if frame.Refused != nil {
		discard(frame)
		ses.server.requests.Add(1)
		return true, ses.fail(frame.ID, status.WithClass(status.ErrLimit, frame.Refused))
	}
	req, err := message.ParseRequest(frame.Body)
	if err != nil {
		discard(frame)
		if errors.Is(err, message.ErrBounds) { // the frame is in order, what stands in it is too much
			ses.server.requests.Add(1)
			return true, ses.fail(frame.ID, fmt.Errorf("request: %w", err))
		}
		return true, fmt.Errorf("%w: request %d: %w", wire.ErrProtocol, frame.ID, err)
	}
	ses.server.requests.Add(1)
	if ses.own && ses.server.stops() && !givesBack(req.Op) {
		discard(frame)
		return true, ses.fail(frame.ID, status.ErrServerClosing)
	}
	op, ok := operations[req.Op]
	if !ok {
		discard(frame)
		return true, ses.fail(frame.ID, fmt.Errorf("%w: operation %d is not known to this owner", errors.ErrUnsupported, req.Op))
	}
	r := request{session: ses, id: frame.ID, body: req.Body, files: frame.Files, metadata: req.Metadata}
	if frame.Files.Len() > 0 && !op.files {
		discard(frame)
		return true, ses.fail(frame.ID, fmt.Errorf("%w: %s takes no descriptors, %d came", wire.ErrProtocol, req.Op, frame.Files.Len()))
	}
	if !op.long {
		defer discard(frame)
		reply, err := op.perform(ses.ctx, r)
		// The reader sends what it has before it waits: answers to requests that came together go out together.
		return true, ses.answer(r.id, reply, err, ses.conn.SendLater)
	}
	w := &work{session: ses, op: op, r: r}
	w.r.args = &w.args
	w.args.Hold()
	if w.caller = frame.Context; w.caller != nil {
		req.Timeout = 0 // its deadline is that of the caller
	}
	if req.Op == message.OpCall {
		if err := w.takeSlabs(); err != nil {
			discard(frame)
			return true, ses.fail(frame.ID, err)
		}
	}
	if err := ses.started(w, req.Timeout, frame); err != nil {
		discard(frame)
		return true, ses.fail(frame.ID, err)
	}
	if req.Op == message.OpCall && w.find() && w.brief() {
		return w.here()
	}
	ses.server.runners.run(w)
	return true, nil
}

// givesBack reports whether an operation only ends what the session has.
func givesBack(op message.Op) bool {
	return op == message.OpObjectRelease || op == message.OpUnwatch || op == message.OpTaskCancel
}

// discard gives back what a frame brought.
func discard(frame wire.Frame) {
	frame.Files.Close()
	frame.Charge.Release()
}

// checkID refuses a request whose number is 0, which no answer could name, or that of a request or subscription that is
// not over, whose answers could not be told from this one's.
func (ses *session) checkID(id uint64) error {
	if id == 0 {
		return fmt.Errorf("%w: a request has the number 0", wire.ErrProtocol)
	}
	ses.mu.Lock()
	_, running := ses.running[id]
	offers := ses.offers
	ses.mu.Unlock()
	if running || ses.events.Has(id) || offers != nil && offers.Has(id) {
		return fmt.Errorf("%w: request %d was sent before and is not over", wire.ErrProtocol, id)
	}
	return nil
}

// work is a long request that runs.
type work struct {
	callContext
	session *session
	op      *operation
	r       request
	args    engine.Arguments // of a call
	bounded bool             // by Limits.RequestTime
}

// started notes a long request so that it can be cancelled.
func (ses *session) started(w *work, timeout time.Duration, frame wire.Frame) error {
	w.parent = ses.ctx
	if most := ses.server.opts.Limits.RequestTime; most > 0 && (timeout <= 0 || timeout > most) {
		timeout, w.bounded = most, true
	}
	if timeout > 0 {
		w.deadline = time.Now().Add(timeout)
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	switch {
	case ses.leaving:
		return fmt.Errorf("%w: the owner is shutting down", status.ErrUnavailable)
	case !ses.own && len(ses.running) >= ses.server.opts.Limits.Requests:
		return limits.Exceeded(limits.Requests, "%d requests of this client are in flight", len(ses.running))
	}
	var err error
	if w.r.reservation, err = ses.admit(frame); err != nil {
		return err
	}
	if ses.running == nil {
		ses.running = map[uint64]*callContext{}
	}
	ses.running[w.r.id] = &w.callContext
	ses.work.Add(1)
	return nil
}

// takeSlabs parses a call and takes the slabs that come back with it, whatever becomes of it. One that cannot be parsed
// has none.
func (w *work) takeSlabs() (err error) {
	if w.r.call, err = message.ParseCall(w.r.body); err != nil {
		return nil // the operation says why
	}
	return w.session.slabs.Return(w.r.call.SlabsReturned, w.r.call.SlabsDropped)
}

// find finds the endpoint of a call. Where it cannot, the operation says why.
func (w *work) find() bool {
	if w.r.callee = w.session.server.lookup(w.r.call.Endpoint); w.r.callee == nil {
		return false
	}
	if plain(w.r.callee) {
		w.slabs = &w.session.slabs
	}
	return true
}

// do runs the operation.
func (w *work) do() (reply, error) {
	defer func() {
		if w.args.Reservation.Total == nil { // else it is released with the arguments
			w.r.reservation.Release()
		}
	}()
	start := time.Now()
	reply, err := w.op.perform(&w.callContext, w.r)
	if w.bounded && errors.Is(err, context.DeadlineExceeded) {
		w.session.server.refusals.Add(limits.RequestTime)
	}
	if w.r.callee != nil {
		w.r.callee.RecentTime.Add(time.Since(start))
	}
	return reply, err
}

// apart runs in a goroutine of its own.
func (w *work) apart() {
	ended := false
	defer func() {
		if !ended { // a function ended its goroutine instead of returning
			w.finish(w.session.fail(w.r.id, status.ErrGoexit))
		}
	}()
	reply, err := w.do()
	ended = true
	w.finish(w.session.answer(w.r.id, reply, err, w.session.conn.Send))
}

// here runs in the goroutine that reads, and reports whether that still does.
func (w *work) here() (reading bool, err error) {
	ses := w.session
	n := ses.reading.begin(ses)
	w.reader = ses
	ended := false
	defer func() {
		if !ended {
			reading := ses.reading.end(n)
			w.finish(ses.fail(w.r.id, status.ErrGoexit))
			if reading {
				go ses.read()
			}
		}
	}()
	reply, err := w.do()
	ended = true
	send := ses.conn.SendLater
	if reading = ses.reading.end(n); !reading || len(w.args.Storages) > 0 { // what comes before the next frame takes a while
		send = ses.conn.Send
	}
	w.finish(ses.answer(w.r.id, reply, err, send))
	return reading, nil
}

// finish gives back what a request had once it is answered, and ends a session that was only waiting for it, or to
// which an answer could not be sent: then its reader sees to the rest.
func (w *work) finish(sent error) {
	ses := w.session
	w.callContext.end(nil)
	w.args.Answered()
	w.r.files.Close()
	ses.mu.Lock()
	delete(ses.running, w.r.id)
	last := ses.leaving && len(ses.running) == 0
	ses.mu.Unlock()
	switch {
	case sent != nil:
		ses.cut()
	case last:
		ses.leave()
	}
	ses.work.Done()
}

// cancelRequest ends the context of a request, with the client's reason as the cause. The frame is borrowed.
func (ses *session) cancelRequest(frame wire.Frame) error {
	cause := context.Canceled
	if len(frame.Body) > 0 {
		var in message.Cancel
		if err := message.Unmarshal(frame.Body, &in); err != nil {
			return err
		}
		if reason := limits.ShortText(in.Reason, limits.ReasonBytes); reason != "" {
			cause = status.WithClass(context.Canceled, errors.New("the client cancelled the request: "+reason))
		}
	}
	ses.mu.Lock()
	c := ses.running[frame.ID]
	ses.mu.Unlock()
	if c != nil {
		c.end(cause)
	}
	return nil
}

// answer sends what came of a request. The error is of the connection, not of the operation.
func (ses *session) answer(id uint64, r reply, failure error, send sender) error {
	if failure != nil {
		return ses.fail(id, failure)
	}
	defer r.close()
	sent := false
	defer func() {
		if !sent {
			r.lost()
		}
	}()
	held := heldAnswer{of: ses.answers}
	defer held.release()
	if err := held.grow(r.size()); err != nil { // before it is made
		return ses.fail(id, err)
	}
	buf := bufpool.Bodies.Get()
	defer bufpool.Bodies.Put(buf)
	var err error
	if *buf, err = r.appendTo(*buf); err != nil {
		return ses.fail(id, fmt.Errorf("encode the answer: %w", err))
	}
	if err := held.grow(len(*buf)); err != nil {
		return ses.fail(id, err)
	}
	if r.slabs != nil {
		// Its memory is the client's from here on. The client may give it back before the send has returned, for a result
		// that would have to be in other memory if this one had not ended.
		r.release()
	}
	if err := ses.sendAnswer(send, id, *buf, &r); err != nil {
		if errors.Is(err, wire.ErrTooLarge) { // nothing was sent
			return ses.fail(id, status.WithClass(status.ErrLimit, err))
		}
		return err
	}
	sent = true
	if r.after != nil {
		r.after()
	}
	return nil
}

// sendAnswer sends the answer to a request. What it shares with others is not copied.
func (ses *session) sendAnswer(send sender, id uint64, body []byte, r *reply) error {
	if len(r.shared) == 0 {
		return ses.send(send, wire.KindResponse, id, body, r.files, r.memory())
	}
	if conn, ok := ses.conn.(*wire.Conn); ok {
		return conn.SendShared(wire.KindResponse, id, body, r.shared, r.files...)
	}
	return ses.send(send, wire.KindResponse, id, slices.Concat(body, r.shared), r.files, r.memory())
}

// heldAnswer is what an answer, or an item of a stream, counts while it is in memory for one client.
type heldAnswer struct {
	of *wire.Account
	n  int64
}

// smallAnswer is how many bytes an answer may have without being counted: there are no more of them than requests in
// flight.
const smallAnswer = 4 << 10

// grow counts an answer that has so many bytes in all.
func (h *heldAnswer) grow(bytes int) error {
	more := int64(bytes) - h.n
	if bytes <= smallAnswer || more <= 0 {
		return nil
	}
	if err := h.of.Take(more); err != nil {
		return status.WithClass(status.ErrLimit, fmt.Errorf("the answer is not made: %w", err))
	}
	h.n += more
	return nil
}

func (h *heldAnswer) release() { h.of.Give(h.n) }

// inProcess reports whether the client is in this process, and so shares memory without export and import.
func (ses *session) inProcess() bool {
	_, ok := ses.conn.(*inproc.Pipe)
	return ok
}

// send sends a frame with what goes beside it, all of which it borrows: descriptors to another process, storages within
// this one.
func (ses *session) send(send sender, kind wire.Kind, id uint64, body []byte, files []*os.File, storages []*tensor.Storage) error {
	if p, ok := ses.conn.(*inproc.Pipe); ok {
		return p.SendStorages(wire.Frame{Kind: kind, ID: id, Body: body}, storages)
	}
	return send(kind, id, body, files...)
}

// fail answers a request with an error.
func (ses *session) fail(id uint64, err error) error {
	ses.server.failures.Add(1)
	ses.server.refusals.Count(err)
	e := status.EncodeSafely(err)
	sent := ses.tell(id, e)
	if errors.Is(sent, wire.ErrTooLarge) { // where frames are that small, the class has to do
		sent = ses.tell(id, &message.Error{Code: e.Code, Type: e.Type})
	}
	return sent
}

// tell sends an error.
func (ses *session) tell(id uint64, e *message.Error) error {
	body, err := message.Marshal(e)
	if err != nil {
		return err
	}
	return ses.conn.Send(wire.KindError, id, body)
}

// fileCost is what a descriptor counts as: the memory that the kernel and this process need for it and its mapping, and
// there are only so many.
const fileCost = 16 << 10

// admit takes over the charge of a request, unless it fails, and adds the request's bytes to those of the session. It
// refuses a request above the limit instead of waiting: a reader that waits would not see the frame that cancels what
// it waits for.
func (ses *session) admit(frame wire.Frame) (engine.Reservation, error) {
	n := int64(len(frame.Body)) + int64(frame.Files.Len())*fileCost
	limit := ses.server.opts.Limits.RequestBytes
	if sum := ses.requestBytes.Add(n); sum > limit && sum > n && !ses.own {
		ses.requestBytes.Add(-n)
		return engine.Reservation{}, limits.Exceeded(limits.RequestBytes, "the requests of this client in flight have %d bytes, descriptors included, and may have %d", sum-n, limit)
	}
	return engine.Reservation{Total: &ses.requestBytes, Bytes: n, Files: frame.Files.Hold(), Body: frame.Charge}, nil
}
