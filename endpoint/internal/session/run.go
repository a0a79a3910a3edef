package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task/panics"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// work is a request and its run. It is recycled when the request ends.
type work struct {
	Request
	run     Run
	bounded bool // RequestTime applies
	late    bool // accepted after the session's goodbye
}

var works = sync.Pool{New: func() any { return new(work) }}

// newWork returns the work for a request, without a run.
func newWork(ses *Session, req *message.Request, frame wire.Frame) *work {
	w := works.Get().(*work)
	w.Request = Request{Session: ses, Op: req.Op, ID: frame.ID, Body: req.Body, Files: frame.Files, Metadata: req.Metadata}
	return w
}

// end ends the run, if there is one, and returns w to the pool.
func (w *work) end() {
	if w.run != nil {
		w.run.End()
	}
	*w = work{}
	works.Put(w)
}

// perform executes the request. It returns a panic as an error.
func (w *work) perform(ctx context.Context) (_ Reply, err error) {
	defer func() {
		if v := recover(); v != nil {
			p := panics.New(v)
			w.Session.of.Log.Error("a request panicked", "value", p.Text(), "stack", string(p.Stack))
			err = p
		}
	}()
	return w.run.Run(ctx, &w.Request)
}

// runInOrder performs a request that is not in flight and answers it.
func (w *work) runInOrder() error {
	ses := w.Session
	defer w.end()
	reply, err := w.perform(ses.ctx)
	// The reader flushes before it waits, so responses to requests that arrived together are sent together.
	return ses.answers.send(w.ID, reply, err, ses.conn.SendLater)
}

// start sets the request's context, deadline and charge, and registers it for cancellation. If it fails, the caller
// keeps the frame.
func (w *work) start(timeout time.Duration, frame wire.Frame) error {
	ses := w.Session
	if w.Context == nil {
		w.Context = new(Context)
	}
	ctx := w.Context
	if ctx.caller = frame.Context; ctx.caller != nil {
		timeout = 0 // the caller's deadline applies
	}
	ctx.parent = ses.ctx
	if most := ses.requestTime(); most > 0 && (timeout <= 0 || timeout > most) {
		timeout, w.bounded = most, true
	}
	if timeout > 0 {
		ctx.deadline = time.Now().Add(timeout)
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

// do performs a request in flight.
func (w *work) do() (Reply, error) {
	ctx := w.Context
	defer func() {
		if !ctx.taken { // otherwise released with the arguments
			ctx.reservation.Release()
		}
	}()
	reply, err := w.perform(ctx)
	switch {
	case w.bounded && errors.Is(err, context.DeadlineExceeded):
		w.Session.of.Totals.Refusals.Add(status.LimitRequestTime)
	case errors.Is(err, status.ErrLeaving):
		w.Session.sayGoodbye() // before the refusal, so that the client repeats the request on another connection
	}
	return reply, err
}

// runAsync runs the request in a goroutine other than the reader.
func (w *work) runAsync() {
	ses, ended := w.Session, false
	defer func() {
		if !ended { // the function called runtime.Goexit
			w.finish(ses.answers.fail(w.ID, status.ErrGoexit))
		}
	}()
	reply, err := w.do()
	ended = true
	w.finish(ses.answers.send(w.ID, reply, err, ses.conn.Send))
}

// runInline runs the request in the reader, and reports whether the goroutine is still the reader.
func (w *work) runInline() (reading bool, err error) {
	ses := w.Session
	n := ses.readToken.begin()
	w.Context.reader = &ses.readToken
	ended := false
	defer func() {
		if !ended {
			reading := ses.readToken.end(n)
			w.finish(ses.answers.fail(w.ID, status.ErrGoexit))
			if reading {
				go ses.read()
			}
		}
	}()
	reply, err := w.do()
	ended = true
	send := ses.conn.SendLater
	if reading = ses.readToken.end(n); !reading || w.SendNow { // the next flush may be late
		send = ses.conn.Send
	}
	w.finish(ses.answers.send(w.ID, reply, err, send))
	return reading, nil
}

// finish releases the resources of an answered request and recycles w. It closes the connection if the response could
// not be sent, and ends the session after its last request if goodbye was sent.
func (w *work) finish(sent error) {
	ses, id, files := w.Session, w.ID, w.Files
	w.Context.end(nil)
	w.end()
	files.Close()
	last := ses.InFlight.over(id)
	switch {
	case sent != nil:
		ses.Cut()
	case last:
		ses.leave()
	}
	ses.work.Done()
}
