package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// work is a long request. It is recycled when the request ends.
type work struct {
	*callState
	session *Session
	op      *Operation
	r       Request
	bounded bool // RequestTime applies
}

// callState is the part of a request that a function may keep after it returns: the context and the arguments of a
// task. Each request has a new one.
type callState struct {
	callContext
	args engine.Arguments // of a call
}

var works = sync.Pool{New: func() any { return new(work) }}

// newWork returns the work for a request, not started.
func newWork(ses *Session, op *Operation, r Request) *work {
	w := works.Get().(*work)
	w.callState, w.session, w.op, w.r = new(callState), ses, op, r
	return w
}

// recycle returns w to the pool.
func (w *work) recycle() {
	*w = work{}
	works.Put(w)
}

// start sets the request's context, deadline and charge, and registers it for cancellation. If it fails, the caller
// keeps the frame.
func (w *work) start(req *message.Request, frame wire.Frame) error {
	ses, timeout := w.session, req.Timeout
	w.r.Arguments = &w.args
	w.args.Hold()
	if w.caller = frame.Context; w.caller != nil {
		timeout = 0 // the caller's deadline applies
	}
	if req.Op == message.OpCall {
		if err := w.takeSlabs(); err != nil {
			return err
		}
	}
	w.parent = ses.ctx
	if most := ses.requestTime(); most > 0 && (timeout <= 0 || timeout > most) {
		timeout, w.bounded = most, true
	}
	if timeout > 0 {
		w.deadline = time.Now().Add(timeout)
	}
	if err := ses.InFlight.begin(w, frame); err != nil {
		return err
	}
	ses.work.Add(1)
	return nil
}

// requestTime returns the time limit for each request of the session; 0 for none.
func (ses *Session) requestTime() time.Duration {
	if ses.Own {
		return 0
	}
	return ses.of.Limits.RequestTime
}

// takeSlabs parses a call and accepts the slabs that it returns, even if the call fails later. It ignores a call that
// cannot be parsed.
func (w *work) takeSlabs() (err error) {
	if w.r.Call, err = message.ParseCall(w.r.Body); err != nil {
		return nil // the operation reports the error
	}
	return w.session.Slabs.Return(w.r.Call.SlabsReturned, w.r.Call.SlabsDropped)
}

// find looks up the endpoint of a call. If it returns false, the operation reports the error.
func (w *work) find() bool {
	if w.r.Callee = w.session.of.Find(w.r.Call.Endpoint); w.r.Callee == nil {
		return false
	}
	if w.r.Callee.Plain() {
		w.slabs = &w.session.Slabs
	}
	return true
}

// do performs the operation.
func (w *work) do() (Reply, error) {
	defer func() {
		if w.args.Reservation.Total == nil { // otherwise released with the arguments
			w.r.Reservation.Release()
		}
	}()
	start := time.Now()
	reply, err := w.op.perform(&w.callContext, w.r)
	if w.bounded && errors.Is(err, context.DeadlineExceeded) {
		w.session.of.Totals.Refusals.Add(limits.RequestTime)
	}
	if w.r.Callee != nil {
		w.r.Callee.RecentTime.Add(time.Since(start))
	}
	return reply, err
}

// runAsync runs the request in a goroutine other than the reader.
func (w *work) runAsync() {
	ses, ended := w.session, false
	defer func() {
		if !ended { // the function called runtime.Goexit
			w.finish(ses.answers.fail(w.r.ID, status.ErrGoexit))
		}
	}()
	reply, err := w.do()
	ended = true
	w.finish(ses.answers.send(w.r.ID, reply, err, ses.conn.Send))
}

// runInline runs the request in the reader, and reports whether the goroutine is still the reader.
func (w *work) runInline() (reading bool, err error) {
	ses := w.session
	n := ses.readToken.begin()
	w.reader = &ses.readToken
	ended := false
	defer func() {
		if !ended {
			reading := ses.readToken.end(n)
			w.finish(ses.answers.fail(w.r.ID, status.ErrGoexit))
			if reading {
				go ses.read()
			}
		}
	}()
	reply, err := w.do()
	ended = true
	send := ses.conn.SendLater
	if reading = ses.readToken.end(n); !reading || len(w.args.Storages) > 0 { // the next flush may be late
		send = ses.conn.Send
	}
	w.finish(ses.answers.send(w.r.ID, reply, err, send))
	return reading, nil
}

// finish releases the resources of an answered request and recycles w. It closes the connection if the response could
// not be sent, and ends the session after its last request if goodbye was sent.
func (w *work) finish(sent error) {
	ses := w.session
	w.callContext.end(nil)
	w.args.Answered()
	w.r.Files.Close()
	last := ses.InFlight.over(w.r.ID)
	switch {
	case sent != nil:
		ses.Cut()
	case last:
		ses.leave()
	}
	w.recycle()
	ses.work.Done()
}
