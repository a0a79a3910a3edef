package endpoint

import (
	"context"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// prepare finds the endpoint of a call, which it returns also with an error, and makes its arguments. The caller closes those.
func (r request) prepare() (*definition, *arguments, error) {
	if r.callee == nil {
		var err error
		if r.call, err = message.ParseCall(r.body); err != nil {
			return nil, nil, err
		}
		if r.callee, err = r.session.server.registry.find(string(r.call.Endpoint)); err != nil {
			return nil, nil, err
		}
	}
	a := r.args
	if a == nil {
		a = new(arguments)
	}
	err := r.session.server.newArguments(a, r.callee, &r.call, r.files, r.session)
	if err == nil {
		a.load = r.load
	}
	return r.callee, a, err
}

// counted prepares a call, does it, and counts it for its endpoint.
func (r request) counted(ctx context.Context, do func(request, context.Context, *definition, *arguments) (reply, error)) (reply, error) {
	d, a, err := r.prepare()
	if d == nil {
		return reply{}, err
	}
	d.calls.Add(1)
	failed := true
	defer func() { // also where the function ended its goroutine
		if failed {
			d.failures.Add(1)
		}
	}()
	if err != nil {
		return reply{}, err
	}
	out, err := do(r, ctx, d, a)
	failed = err != nil
	return out, err
}

func doCall(ctx context.Context, r request) (reply, error) {
	return r.counted(ctx, request.callEndpoint)
}

// callEndpoint runs an endpoint, or finds its result in the cache.
func (r request) callEndpoint(ctx context.Context, d *definition, a *arguments) (reply, error) {
	if d.stream != nil {
		a.drop()
		return reply{}, fmt.Errorf("%w: endpoint %q streams its results, ask for the stream", status.ErrInvalid, d.name)
	}
	if d.options.task {
		return r.callTask(ctx, d, a)
	}
	res, cached, err := r.session.server.obtain(ctx, d, a)
	if err != nil {
		return reply{}, err
	}
	return r.deliver(d, res, cached, nil)
}

// deliver is the reply that carries a result, of which it takes the caller's reference. A managed result gets one reference more for the
// session. of is the outcome of the task that made it, if one did.
func (r request) deliver(d *definition, res grip, cached bool, of *outcome) (reply, error) {
	s := r.session.server
	out, files, err := r.share(res.result, d.options.managed)
	if err != nil {
		res.discard() // what cannot be shared is of no use to those who ask later
		res.release()
		return reply{}, err
	}
	out.Cached = cached
	if err := s.resultMemory.take(r.session.id, res.result); err != nil {
		res.release()
		return reply{}, err
	}
	var undo func()
	if d.options.managed && !res.empty() {
		obj, token, err := s.objects.refer(res, d, of, r.session.id, s.opts.Limits.Objects)
		if err != nil {
			s.resultMemory.give(r.session.id, res.result)
			res.release()
			return reply{}, err
		}
		out.Object = &message.ObjectRef{ID: obj.id, Server: s.id, Token: token}
		s.noteObject(of, obj)
		session := r.session.id // not r, which would be allocated for calls that need no undo too
		undo = func() { _, _ = s.releaseReference(obj.id, token, session) }
	}
	return reply{result: res, keptFor: r.session, returned: out, files: files, undo: undo}, nil
}

// share makes a result ready to be sent. kept tells that the server keeps it for who gets it. The files are the result's.
func (r request) share(res *result, kept bool) (message.Returned, []*os.File, error) {
	out, files, err := res.returned(r.session.lends())
	for i := 0; err == nil && i < len(out.Handles); i++ {
		err = lasting(out.Handles[i].Kind, kept)
	}
	return out, files, err
}

func doEndpoints(_ context.Context, r request) (reply, error) {
	var out message.EndpointsListed
	for _, d := range r.session.server.registry.list() {
		out.Endpoints = append(out.Endpoints, d.info())
	}
	return reply{body: out}, nil
}

// info describes the endpoint.
func (d *definition) info() message.EndpointInfo {
	o := d.options
	info := message.EndpointInfo{
		Name: d.name, Task: o.task, Managed: o.managed, Stream: d.stream != nil, Cache: o.cached, SingleFlight: o.cached && !o.noSingleFlight,
		Serialized: o.serialized != nil, Timeout: int64(o.timeout), In: codec.Clipped(codec.TypeName(d.in)), Out: codec.Clipped(codec.TypeName(d.out)),
		InFields: codec.DescribeFields(d.in), OutFields: codec.DescribeFields(d.out), Uncached: d.uncached.Load(),
	}
	if o.cacheKey != nil {
		info.CacheKey = o.cacheKey.Text
	}
	return info
}

func doInvalidateCall(_ context.Context, r request) (reply, error) {
	d, a, err := r.prepare()
	if err != nil {
		return reply{}, err
	}
	defer a.drop()
	var out message.Invalidated
	if key, ok := d.key(a); ok && r.session.server.results.Invalidate(key) {
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
	if _, err := s.registry.find(in.Endpoint); err != nil {
		return reply{}, err
	}
	return reply{body: message.Invalidated{Count: uint64(s.results.InvalidateGroup(in.Endpoint))}}, nil
}
