package server

import (
	"context"
	"errors"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Intercept runs do through the server's interceptors. undo releases the result of a successful do that does not reach
// the caller.
type Intercept func(ctx context.Context, call Intercepted, do func(context.Context) error, undo func()) error

// Intercepted describes a call, a task or a stream to interceptors.
type Intercepted struct {
	Submit   bool             // submission of a task
	Stream   bool             // whole stream
	Endpoint string           // its name
	Peer     Peer             // caller
	Metadata message.Metadata // sent with the call
	Task     string           // id of the submitted task that runs; else empty
	// Argument returns the decoded argument until the call ends. It is nil for the run of a task.
	Argument func() (any, error)
}

// Peer identifies the process of a client.
type Peer struct {
	PID      int32  // credentials from the kernel
	UID, GID uint32 // credentials from the kernel
	Session  uint64 // number of the session
	Label    string // chosen by the client
}

// peerOf returns the Peer of a session's client.
func peerOf(ses *session.Session) Peer {
	peer := ses.Peer()
	return Peer{PID: peer.PID, UID: peer.UID, GID: peer.GID, Session: ses.ID, Label: ses.Label()}
}

var (
	errRunTwice = errors.New("an interceptor called next twice: a function runs once for each call")
	errCallOver = errors.New("an interceptor requested the argument after the call had ended")
)

// described returns the description of the call for interceptors.
func (c *call) described(submit bool) Intercepted {
	return Intercepted{Submit: submit, Stream: c.callee.Stream != nil, Endpoint: c.callee.Name, Peer: peerOf(c.client.session), Metadata: c.request.Metadata}
}

// intercepted runs the call through the server's interceptors. Arguments are decoded on first use.
func (c *call) intercepted(ctx context.Context, submit bool, do callee) (out session.Reply, err error) {
	var a *engine.Arguments
	var refused error
	prepare := func() error {
		if a == nil && refused == nil {
			a, refused = c.arguments()
		}
		return refused
	}
	taken := false // do owns the arguments; a submitted task has them longer than the call
	defer func() {
		if a != nil && !taken {
			a.Drop()
		}
		a, refused = nil, errCallOver
	}()
	about := c.described(submit)
	about.Argument = func() (any, error) {
		if err := prepare(); err != nil {
			return nil, err
		}
		in := reflect.ValueOf(a.Value).Elem().Interface()
		if passed, ok := in.(*offering.Arguments); ok { // a worker decodes them into its types
			return a.DecodeForwarded(passed.Raw)
		}
		return in, nil
	}
	ran := false
	var ended error // of the call
	err = c.intercept(ctx, about, func(ctx context.Context) error {
		if ran {
			return errRunTwice
		}
		ran = true
		if err := prepare(); err != nil {
			return err
		}
		taken = true
		out, ended = do(c, ctx, a)
		return ended
	}, func() { out.Done(false) })
	if err != nil {
		if !errors.Is(ended, status.ErrLeaving) { // else the call did not run, and the interceptor passed the error on
			err = status.Ran(err)
		}
		return nil, err
	}
	return out, nil
}

// around returns a wrapper that runs a submitted task through the server's interceptors, or nil if there are none.
func (c *call) around() func(engine.Obtain) engine.Obtain {
	if c.intercept == nil {
		return nil
	}
	about, o, d := c.described(false), c.callOperations, c.callee // the task outlives c
	return func(obtain engine.Obtain) engine.Obtain {
		return func(ctx context.Context) (res engine.ResultRef, cached bool, err error) {
			defer o.engine.Recovered(&err, d, "")
			about := about
			about.Task, _ = task.ID(ctx)
			ran := false
			err = o.intercept(ctx, about, func(ctx context.Context) (err error) {
				if ran {
					return errRunTwice
				}
				ran = true
				res, cached, err = obtain(ctx)
				return err
			}, func() { res.Release() })
			return res, cached, err
		}
	}
}
