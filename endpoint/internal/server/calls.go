package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// callOperations runs endpoints for clients: calls, streams, and submissions of tasks.
type callOperations struct {
	engine    *engine.Engine
	endpoints *Endpoints
	intercept Intercept // nil for none
	server    string    // the server's id
	objects   int       // limit of one client's references
	tasks     int       // limit of one client's tasks that have not ended
}

// call is the run of one call, stream or submission. It is recycled when the request ends.
type call struct {
	*callOperations
	request *session.Request
	do      func(*call, context.Context) (session.Reply, error)
	client  *client
	parts   message.CallParts  // set when the call was parsed
	callee  *engine.Definition // set when the endpoint was found
	state   *callState
	out     returned
}

// callState is the part of a call that a function or a task may keep after the request ends. Each call has a new one.
type callState struct {
	session.Context
	args engine.Arguments
}

var callPool = sync.Pool{New: func() any { return new(call) }}

// prepare returns the Prepare function of an operation with an endpoint and arguments.
func (o *callOperations) prepare(do func(*call, context.Context) (session.Reply, error)) func(*session.Request) (session.Run, session.Place, error) {
	return func(r *session.Request) (session.Run, session.Place, error) {
		return o.newCall(r, do), session.Async, nil
	}
}

// newCall returns the run of a request.
func (o *callOperations) newCall(r *session.Request, do func(*call, context.Context) (session.Reply, error)) *call {
	c := callPool.Get().(*call)
	c.callOperations, c.request, c.do, c.client, c.state = o, r, do, clientOf(r.Session), new(callState)
	c.state.args.Hold()
	r.Context = &c.state.Context
	return c
}

const (
	// inlineTime is the maximum expected duration of a call that the reader runs while other frames are buffered. It is
	// about the cost of handing the call to another goroutine.
	inlineTime = 20 * time.Microsecond
	// briefTime is the maximum if no frames are buffered.
	briefTime = 50 * time.Microsecond
)

// prepareCall is the Prepare function of a call. It accepts the slabs that the call returns, even if the call fails
// later. Recent calls of the endpoint predict the duration of the call.
func (o *callOperations) prepareCall(r *session.Request) (session.Run, session.Place, error) {
	c := o.newCall(r, (*call).call)
	var err error
	if c.parts, err = message.ParseCall(r.Body); err != nil {
		return c, session.Async, nil // the run reports the error
	}
	if err := c.client.slabs.Return(c.parts.SlabsReturned, c.parts.SlabsDropped); err != nil {
		return c, session.Async, err
	}
	if c.callee = o.endpoints.lookup(c.parts.Endpoint); c.callee == nil {
		return c, session.Async, nil // the run reports the error
	}
	if c.callee.Plain() {
		c.state.Attached = &c.client.slabs
	}
	if recent := c.callee.RecentTime.Get(); recent <= inlineTime || recent <= briefTime && !r.Session.Buffered() {
		return c, session.Inline, nil
	}
	return c, session.Async, nil
}

// Run implements session.Run.
func (c *call) Run(ctx context.Context, _ *session.Request) (_ session.Reply, err error) {
	ended := false
	defer func() {
		if !ended {
			c.state.args.Drop()
		}
	}()
	if d := c.callee; d != nil {
		start := time.Now()
		defer func() { d.RecentTime.Add(time.Since(start)) }()
	}
	defer c.engine.Recovered(&err, c.callee, "")
	out, err := c.do(c, ctx)
	ended = true
	return out, err
}

// End implements session.Run.
func (c *call) End() {
	c.state.args.Answered()
	*c = call{}
	callPool.Put(c)
}

// find parses the call and finds its endpoint, unless this is done, and checks that the client may call it.
func (c *call) find() (err error) {
	if c.callee == nil {
		if c.parts, err = message.ParseCall(c.request.Body); err != nil {
			return err
		}
	}
	if c.client.restricted() {
		if err := c.client.may(access.Call, string(c.parts.Endpoint)); err != nil { // does not reveal which endpoints exist
			return err
		}
	}
	if c.callee == nil {
		c.callee, err = c.endpoints.find(string(c.parts.Endpoint))
	}
	return err
}

// arguments decodes the arguments of a call whose endpoint is set. The caller closes them.
func (c *call) arguments() (*engine.Arguments, error) {
	a := &c.state.args
	if err := c.engine.NewArguments(a, c.callee, &c.parts, c.request.Files, c.client.caller()); err != nil {
		return nil, err
	}
	a.Reservation = c.state.TakeReservation()
	c.request.SendNow = len(a.Storages) > 0 // unmapping them takes long
	return a, nil
}

// callee runs a call and takes ownership of its decoded arguments.
type callee func(c *call, ctx context.Context, a *engine.Arguments) (session.Reply, error)

// counted runs a call through the server's interceptors and updates its endpoint's statistics.
func (c *call) counted(ctx context.Context, submit bool, do callee) (session.Reply, error) {
	if err := c.find(); err != nil {
		return nil, err
	}
	d := c.callee
	d.Calls.Add(1)
	failed := true
	defer func() { // also if the function called runtime.Goexit
		if failed {
			d.Failures.Add(1)
		}
	}()
	if c.intercept != nil {
		out, err := c.intercepted(ctx, submit, do)
		failed = err != nil
		return out, err
	}
	a, err := c.arguments()
	if err != nil {
		return nil, err
	}
	out, err := do(c, ctx, a)
	failed = err != nil
	return out, err
}

func (c *call) call(ctx context.Context) (session.Reply, error) {
	return c.counted(ctx, false, (*call).callEndpoint)
}

// callEndpoint runs an endpoint or returns a cached result.
func (c *call) callEndpoint(ctx context.Context, a *engine.Arguments) (session.Reply, error) {
	d := c.callee
	if d.Stream != nil {
		a.Drop()
		return nil, fmt.Errorf("%w: endpoint %q streams its results: use Stream", status.ErrInvalid, d.Name)
	}
	if d.Options.Task {
		return c.callTask(ctx, a)
	}
	res, cached, err := c.engine.Obtain(ctx, d, a)
	if err != nil {
		return nil, err
	}
	return c.deliver(&c.out, c.client, d, res, cached, nil)
}

// list lists the endpoints that the client may call or offer.
func (o *callOperations) list(_ context.Context, r *session.Request) (session.Reply, error) {
	var out message.EndpointsListed
	c := clientOf(r.Session)
	for _, d := range o.endpoints.List() {
		if !c.allowed(access.Call, d.Name) && !c.allowed(access.Offer, d.Name) {
			continue
		}
		out.Endpoints = append(out.Endpoints, d.Info())
	}
	return &answer{body: out}, nil
}

// invalidate removes the result of a call from the cache.
func (c *call) invalidate(context.Context) (session.Reply, error) {
	if err := c.find(); err != nil {
		return nil, err
	}
	a, err := c.arguments()
	if err != nil {
		return nil, err
	}
	defer a.Drop()
	var out message.Invalidated
	if key, ok := c.callee.Key(a); ok && c.engine.Results.Invalidate(key) {
		out.Count = 1
	}
	return &answer{body: out}, nil
}

func (o *callOperations) invalidateEndpoint(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.InvalidateEndpoint
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	c := clientOf(r.Session)
	if err := c.may(access.Call, in.Endpoint); err != nil {
		return nil, err
	}
	if _, err := o.endpoints.find(in.Endpoint); err != nil {
		return nil, err
	}
	if err := c.mayChange(changeInvalidate, "name", in.Endpoint); err != nil {
		return nil, err
	}
	count := uint64(o.engine.Results.InvalidateGroup(in.Endpoint))
	c.audit(changeInvalidate, "name", in.Endpoint, "results", count)
	return &answer{body: message.Invalidated{Count: count}}, nil
}
