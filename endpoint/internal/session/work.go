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

// work is a long request that runs. It is used again for another request when this one is over.
type work struct {
	*callState
	session *Session
	op      *Operation
	r       Request
	bounded bool // by the limit of RequestTime
}

// callState is what a function may keep beyond its request: the context, and arguments of a task. It is made anew for
// each request.
type callState struct {
	callContext
	args engine.Arguments // of a call
}

var works = sync.Pool{New: func() any { return new(work) }}

// newWork is a request that is to run.
func newWork(ses *Session, op *Operation, r Request) *work {
	w := works.Get().(*work)
	w.callState, w.session, w.op, w.r = new(callState), ses, op, r
	return w
}

// recycle ends the use of w by a request that is over.
func (w *work) recycle() {
	*w = work{}
	works.Put(w)
}

// start makes the request ready to run: what it can be cancelled by, its deadline, and what its frame counts. The frame
// stays the caller's where that fails.
func (w *work) start(req *message.Request, frame wire.Frame) error {
	ses, timeout := w.session, req.Timeout
	w.r.Arguments = &w.args
	w.args.Hold()
	if w.caller = frame.Context; w.caller != nil {
		timeout = 0 // its deadline is that of the caller
	}
	if req.Op == message.OpCall {
		if err := w.takeSlabs(); err != nil {
			return err
		}
	}
	w.parent = ses.ctx
	if most := ses.of.Limits.RequestTime; most > 0 && (timeout <= 0 || timeout > most) {
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

// takeSlabs parses a call and takes the slabs that come back with it, whatever becomes of it. One that cannot be parsed
// has none.
func (w *work) takeSlabs() (err error) {
	if w.r.Call, err = message.ParseCall(w.r.Body); err != nil {
		return nil // the operation says why
	}
	return w.session.Slabs.Return(w.r.Call.SlabsReturned, w.r.Call.SlabsDropped)
}

// find finds the endpoint of a call. Where it cannot, the operation says why.
func (w *work) find() bool {
	if w.r.Callee = w.session.of.Find(w.r.Call.Endpoint); w.r.Callee == nil {
		return false
	}
	if w.r.Callee.Plain() {
		w.slabs = &w.session.Slabs
	}
	return true
}

// do runs the operation.
func (w *work) do() (Reply, error) {
	defer func() {
		if w.args.Reservation.Total == nil { // else it is released with the arguments
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

// apart runs in a goroutine of its own.
func (w *work) apart() {
	ses, ended := w.session, false
	defer func() {
		if !ended { // a function ended its goroutine instead of returning
			w.finish(ses.answers.fail(w.r.ID, status.ErrGoexit))
		}
	}()
	reply, err := w.do()
	ended = true
	w.finish(ses.answers.send(w.r.ID, reply, err, ses.conn.Send))
}

// here runs in the goroutine that reads, and reports whether that still does.
func (w *work) here() (reading bool, err error) {
	ses := w.session
	n := ses.reading.begin()
	w.reader = &ses.reading
	ended := false
	defer func() {
		if !ended {
			reading := ses.reading.end(n)
			w.finish(ses.answers.fail(w.r.ID, status.ErrGoexit))
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
	w.finish(ses.answers.send(w.r.ID, reply, err, send))
	return reading, nil
}

// finish gives back what a request had once it is answered, and ends a session that was only waiting for it, or to
// which an answer could not be sent: then its reader sees to the rest. w is not used any more after it.
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
