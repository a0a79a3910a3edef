package endpoint

import (
	"context"
	"errors"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/task"
)

var errRunTwice = errors.New("an interceptor called next twice: a function runs once for each call")

// callee runs a call and takes ownership of its decoded arguments.
type callee func(*callOperations, context.Context, request, *engine.Definition, *engine.Arguments) (reply, error)

// intercepted runs a call through the server's interceptors. Arguments are decoded on first use.
func (o *callOperations) intercepted(ctx context.Context, r request, kind InvocationKind, d *engine.Definition, do callee) (out reply, err error) {
	var a *engine.Arguments
	var refused error
	prepare := func() error {
		if a == nil && refused == nil {
			a, refused = o.arguments(r)
		}
		return refused
	}
	defer func() {
		if a != nil {
			a.Drop() // if nothing ran
		}
	}()
	call := invocation(r, kind, d)
	call.argument = func() (any, error) {
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
	err = call.through(ctx, o.intercept, func(ctx context.Context) error {
		if ran {
			return errRunTwice
		}
		ran = true
		if err := prepare(); err != nil {
			return err
		}
		var err error
		out, err = do(o, ctx, r, d, a)
		return err
	}, func() {
		out.Lost()
		out.Close()
	})
	if err != nil {
		return reply{}, err
	}
	return out, nil
}

// invocation returns the Invocation of a session's call.
func invocation(r request, kind InvocationKind, d *engine.Definition) *Invocation {
	return &Invocation{Endpoint: d.Name, Kind: kind, Metadata: r.Metadata, Peer: peerOf(r.Session)}
}

// around returns a wrapper that runs a submitted task through the server's interceptors, or nil if there are none.
func (o *callOperations) around(r request, d *engine.Definition) func(engine.Obtain) engine.Obtain {
	if o.intercept == nil {
		return nil
	}
	call := invocation(r, KindTask, d) // capturing r would keep it alive with the task
	return func(obtain engine.Obtain) engine.Obtain {
		return func(ctx context.Context) (res engine.ResultRef, cached bool, err error) {
			defer o.engine.Recovered(&err, d, "")
			call.Task, _ = task.ID(ctx)
			ran := false
			err = call.through(ctx, o.intercept, func(ctx context.Context) (err error) {
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

// peerOf returns the Peer of a session's client.
func peerOf(ses *session.Session) Peer {
	peer := ses.Peer()
	return Peer{PID: peer.PID, UID: peer.UID, GID: peer.GID, Session: ses.ID, Label: ses.Label()}
}
