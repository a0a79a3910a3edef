package endpoint

import (
	"context"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// found is the request with the endpoint of its call.
func (r request) found() (request, error) {
	if r.callee != nil {
		return r, nil
	}
	var err error
	if r.call, err = message.ParseCall(r.body); err == nil {
		r.callee, err = r.session.server.find(string(r.call.Endpoint))
	}
	return r, err
}

// arguments makes the arguments of a call whose endpoint is found. The caller closes them.
func (r request) arguments() (*engine.Arguments, error) {
	a := r.args
	if a == nil {
		a = new(engine.Arguments)
	}
	if err := r.session.server.engine.NewArguments(a, r.callee, &r.call, r.files, r.session.id, &r.session.kept); err != nil {
		return nil, err
	}
	a.Reservation = r.reservation
	return a, nil
}

// counted does a call, through the server's interceptors, and counts it for its endpoint.
func (r request) counted(ctx context.Context, kind InvocationKind, do callee) (reply, error) {
	r, err := r.found()
	if err != nil {
		return reply{}, err
	}
	d := r.callee
	d.Calls.Add(1)
	failed := true
	defer func() { // also where the function ended its goroutine
		if failed {
			d.Failures.Add(1)
		}
	}()
	if r.session.server.intercept != nil {
		out, err := r.intercepted(ctx, kind, d, do)
		failed = err != nil
		return out, err
	}
	a, err := r.arguments()
	if err != nil {
		return reply{}, err
	}
	out, err := do(r, ctx, d, a)
	failed = err != nil
	return out, err
}

func doCall(ctx context.Context, r request) (reply, error) {
	return r.counted(ctx, KindCall, request.callEndpoint)
}

// callEndpoint runs an endpoint, or finds its result in the cache.
func (r request) callEndpoint(ctx context.Context, d *engine.Definition, a *engine.Arguments) (reply, error) {
	if d.Stream != nil {
		a.Drop()
		return reply{}, fmt.Errorf("%w: endpoint %q streams its results, ask for the stream", status.ErrInvalid, d.Name)
	}
	if d.Options.Task {
		return r.callTask(ctx, d, a)
	}
	res, cached, err := r.session.server.engine.Obtain(ctx, d, a)
	if err != nil {
		return reply{}, err
	}
	return r.deliver(d, res, cached, nil)
}

// deliver is the reply that carries a result, of which it takes the caller's reference. A managed result gets one
// reference more for the session. of is the outcome of the task that made it, if one did.
func (r request) deliver(d *engine.Definition, res engine.ResultRef, cached bool, of *engine.Outcome) (reply, error) {
	s := r.session.server
	if plain(d) && of == nil {
		slabs, err := r.session.slabs.Share(res.Payload.Storages)
		if slabs != nil || err != nil {
			return r.deliverSlabs(res, slabs, err)
		}
	}
	out, files, err := r.share(res.Result, d.Options.Managed)
	if err != nil {
		res.Discard() // what cannot be shared is of no use to those who ask later
		res.Release()
		return reply{}, err
	}
	out.Cached = cached
	if err := s.engine.Memory.Take(r.session.id, res.Result); err != nil {
		res.Release()
		return reply{}, err
	}
	var undo func()
	if d.Options.Managed && !res.Empty() {
		obj, token, err := s.engine.Objects.Refer(res, d, of, r.session.id, s.opts.Limits.Objects)
		if err != nil {
			s.engine.Memory.Give(r.session.id, res.Result)
			res.Release()
			return reply{}, err
		}
		out.Object = &message.ObjectRef{ID: obj.ID, Server: s.id, Token: token}
		s.engine.NoteObject(of, obj)
		session := r.session.id // not r, which would be allocated for calls that need no undo too
		undo = func() { _, _ = s.engine.ReleaseReference(obj.ID, token, session) }
	}
	return reply{result: res, keptFor: r.session, returned: out, files: files, undo: undo}, nil
}

// plain reports whether nobody but its caller gets a result of the endpoint.
func plain(d *engine.Definition) bool {
	return !d.Options.Cached && !d.Options.Managed && !d.Options.Task && d.Stream == nil
}

// deliverSlabs is deliver for a result in slabs, which it takes too.
func (r request) deliverSlabs(res engine.ResultRef, slabs *transfer.SlabExport, err error) (reply, error) {
	for i := 0; err == nil && i < len(slabs.Handles); i++ {
		err = engine.CheckLasting(slabs.Handles[i].Kind, false)
	}
	if err == nil {
		err = r.session.server.engine.Memory.Take(r.session.id, res.Result)
	}
	if err != nil {
		if slabs != nil {
			slabs.Unsent()
			slabs.Close()
		}
		res.Release()
		return reply{}, err
	}
	out := message.Returned{Value: res.Payload.Value, Handles: slabs.Handles}
	return reply{result: res, keptFor: r.session, returned: out, files: slabs.Files, slabs: slabs}, nil
}

// share makes a result ready to be sent. kept tells that the server keeps it for who gets it. The files are the
// result's.
func (r request) share(res *engine.Result, kept bool) (message.Returned, []*os.File, error) {
	out, files, err := res.Returned(r.session.inProcess())
	for i := 0; err == nil && i < len(out.Handles); i++ {
		err = engine.CheckLasting(out.Handles[i].Kind, kept)
	}
	return out, files, err
}

func doEndpoints(_ context.Context, r request) (reply, error) {
	var out message.EndpointsListed
	for _, d := range r.session.server.endpoints() {
		out.Endpoints = append(out.Endpoints, d.Info())
	}
	return reply{body: out}, nil
}

func doInvalidateCall(_ context.Context, r request) (reply, error) {
	r, err := r.found()
	if err != nil {
		return reply{}, err
	}
	a, err := r.arguments()
	if err != nil {
		return reply{}, err
	}
	defer a.Drop()
	var out message.Invalidated
	if key, ok := r.callee.Key(a); ok && r.session.server.engine.Results.Invalidate(key) {
		out.Count = 1
	}
	return reply{body: out}, nil
}

func doInvalidateEndpoint(_ context.Context, r request) (reply, error) {
	var in message.InvalidateEndpoint
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	s := r.session.server
	if _, err := s.find(in.Endpoint); err != nil {
		return reply{}, err
	}
	return reply{body: message.Invalidated{Count: uint64(s.engine.Results.InvalidateGroup(in.Endpoint))}}, nil
}
