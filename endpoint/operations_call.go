package endpoint

import (
	"context"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// callOperations runs endpoints for clients: calls, streams, and submissions of tasks.
type callOperations struct {
	engine    *engine.Engine
	endpoints *endpoints
	intercept Invoke // interceptors; nil for none
	server    string // the server's id
	limits    *Limits
}

// found returns the request with its endpoint set.
func (o *callOperations) found(r request) (request, error) {
	if r.Callee != nil {
		return r, nil
	}
	var err error
	if r.Call, err = message.ParseCall(r.Body); err == nil {
		r.Callee, err = o.endpoints.find(string(r.Call.Endpoint))
	}
	return r, err
}

// arguments decodes the arguments of a call whose endpoint is set. The caller closes them.
func (o *callOperations) arguments(r request) (*engine.Arguments, error) {
	a := r.Arguments
	if a == nil {
		a = new(engine.Arguments)
	}
	if err := o.engine.NewArguments(a, r.Callee, &r.Call, r.Files, r.Session.ID, &r.Session.Kept); err != nil {
		return nil, err
	}
	a.Reservation = r.Reservation
	return a, nil
}

// counted runs a call through the server's interceptors and updates its endpoint's statistics.
func (o *callOperations) counted(ctx context.Context, r request, kind InvocationKind, do callee) (reply, error) {
	r, err := o.found(r)
	if err != nil {
		return reply{}, err
	}
	d := r.Callee
	d.Calls.Add(1)
	failed := true
	defer func() { // also if the function called runtime.Goexit
		if failed {
			d.Failures.Add(1)
		}
	}()
	if o.intercept != nil {
		out, err := o.intercepted(ctx, r, kind, d, do)
		failed = err != nil
		return out, err
	}
	a, err := o.arguments(r)
	if err != nil {
		return reply{}, err
	}
	out, err := do(o, ctx, r, d, a)
	failed = err != nil
	return out, err
}

func (o *callOperations) call(ctx context.Context, r request) (reply, error) {
	return o.counted(ctx, r, KindCall, (*callOperations).callEndpoint)
}

// callEndpoint runs an endpoint or returns a cached result.
func (o *callOperations) callEndpoint(ctx context.Context, r request, d *engine.Definition, a *engine.Arguments) (reply, error) {
	if d.Stream != nil {
		a.Drop()
		return reply{}, fmt.Errorf("%w: endpoint %q streams its results: use Stream", status.ErrInvalid, d.Name)
	}
	if d.Options.Task {
		return o.callTask(ctx, r, d, a)
	}
	res, cached, err := o.engine.Obtain(ctx, d, a)
	if err != nil {
		return reply{}, err
	}
	return o.deliver(r, d, res, cached, nil)
}

// deliver returns the reply for a result and takes the caller's reference to it. For a managed result it adds a
// reference for the session. of is the outcome of the task that made the result, or nil.
func (o *callOperations) deliver(r request, d *engine.Definition, res engine.ResultRef, cached bool, of *engine.Outcome) (reply, error) {
	if d.Plain() && of == nil {
		slabs, err := r.Session.Slabs.Share(res.Payload.Storages)
		if slabs != nil || err != nil {
			return o.deliverSlabs(r.Session, res, slabs, err)
		}
	}
	out, files, err := share(r.Session, res.Result, d.Options.Managed)
	if err != nil {
		res.Discard() // a result that cannot be shared must not stay cached
		res.Release()
		return reply{}, err
	}
	out.Cached = cached
	if err := o.engine.Memory.Add(r.Session.ID, res.Result); err != nil {
		res.Release()
		return reply{}, err
	}
	var undo func()
	if d.Options.Managed && !res.Empty() {
		obj, token, err := o.engine.Objects.Refer(res, d, of, r.Session.ID, r.Session.LimitOf(o.limits.Objects))
		if err != nil {
			o.engine.Memory.Remove(r.Session.ID, res.Result)
			res.Release()
			return reply{}, err
		}
		out.Object = &message.ObjectRef{ID: obj.ID, Server: o.server, Token: token}
		o.engine.SetObject(of, obj)
		id := r.Session.ID // capturing r would allocate it for calls that need no undo too
		undo = func() { _, _ = o.engine.ReleaseReference(obj.ID, token, id) }
	}
	return reply{Result: res, KeptFor: r.Session, Returned: out, Files: files, Undo: undo}, nil
}

// deliverSlabs is deliver for a result in slabs. It takes ownership of the slabs too.
func (o *callOperations) deliverSlabs(ses *session.Session, res engine.ResultRef, slabs *transfer.SlabExport, err error) (reply, error) {
	for i := 0; err == nil && i < len(slabs.Handles); i++ {
		err = engine.CheckLasting(slabs.Handles[i].Kind, false)
	}
	if err == nil {
		err = o.engine.Memory.Add(ses.ID, res.Result)
	}
	if err != nil {
		if slabs != nil {
			slabs.MarkUnsent()
			slabs.Close()
		}
		res.Release()
		return reply{}, err
	}
	out := message.Returned{Value: res.Payload.Value, Handles: slabs.Handles}
	return reply{Result: res, KeptFor: ses, Returned: out, Files: slabs.Files, Slabs: slabs}, nil
}

// share prepares a result for sending. kept is true if the server keeps it for its receiver. The result owns the files.
func share(ses *session.Session, res *engine.Result, kept bool) (message.Returned, []*os.File, error) {
	out, files, err := res.Returned(ses.InProcess())
	for i := 0; err == nil && i < len(out.Handles); i++ {
		err = engine.CheckLasting(out.Handles[i].Kind, kept)
	}
	return out, files, err
}

func (o *callOperations) list(_ context.Context, r request) (reply, error) {
	var out message.EndpointsListed
	for _, d := range o.endpoints.list() {
		out.Endpoints = append(out.Endpoints, d.Info())
	}
	return reply{Body: out}, nil
}

func (o *callOperations) invalidateCall(_ context.Context, r request) (reply, error) {
	r, err := o.found(r)
	if err != nil {
		return reply{}, err
	}
	a, err := o.arguments(r)
	if err != nil {
		return reply{}, err
	}
	defer a.Drop()
	var out message.Invalidated
	if key, ok := r.Callee.Key(a); ok && o.engine.Results.Invalidate(key) {
		out.Count = 1
	}
	return reply{Body: out}, nil
}

func (o *callOperations) invalidateEndpoint(_ context.Context, r request) (reply, error) {
	var in message.InvalidateEndpoint
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	if _, err := o.endpoints.find(in.Endpoint); err != nil {
		return reply{}, err
	}
	return reply{Body: message.Invalidated{Count: uint64(o.engine.Results.InvalidateGroup(in.Endpoint))}}, nil
}

func returnSlabs(_ context.Context, r request) (reply, error) {
	var in message.ReturnSlabs
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	if err := r.Session.Slabs.Return(in.Returned, in.Dropped); err != nil {
		return reply{}, err
	}
	return reply{Body: message.SlabsReturned{}}, nil
}
