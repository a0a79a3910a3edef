package jsonrpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// maxStreamItems bounds how many results of a stream are collected for one answer.
const maxStreamItems = 100_000

// call is a call that is ready to be made.
type call struct {
	caller endpoint.Caller
	info   endpoint.EndpointInfo
	in     any
	held   *incoming
	params *callParams
}

// prepare finds the function and makes its argument. The caller closes held, also on an error.
func (c *Component) prepare(ctx context.Context, p *callParams) (*call, error) {
	prepared := &call{params: p, held: &incoming{c: c}}
	name, err := p.function()
	if err != nil {
		return prepared, err
	}
	if err := p.check(); err != nil {
		return prepared, err
	}
	if _, err := c.env.Owner.Caller(name); err != nil {
		return prepared, &callError{err, notRun}
	}
	if prepared.caller, prepared.info, err = c.endpoints.find(ctx, c.env.Owner, name); err != nil {
		return prepared, err
	}
	if prepared.in, err = p.argument(prepared.info); err != nil {
		return prepared, err
	}
	prepared.held.client, _ = c.env.Owner.Client() // a tensor by reference says so where there is none
	prepared.in, err = prepared.held.value(ctx, prepared.in, 0)
	return prepared, err
}

// bind makes a request to the owner end when the owner goes away.
func (c *Component) bind(ctx context.Context, caller endpoint.Caller) (context.Context, context.CancelFunc) {
	if _, isOwner := caller.(*endpoint.Client); isOwner {
		return c.env.Owner.Bind(ctx)
	}
	return ctx, func() {}
}

// owner is the connection to the owner, and ctx bound to it. The caller calls the function when the request has ended.
func (c *Component) owner(ctx context.Context) (*endpoint.Client, context.Context, context.CancelFunc, error) {
	client, err := c.env.Owner.Client()
	if err != nil {
		return nil, ctx, nil, err
	}
	ctx, cancel := c.env.Owner.Bind(ctx)
	return client, ctx, cancel, nil
}

// run calls the function and returns its result as a value of JSON.
func (c *Component) run(ctx context.Context, p *callParams) (out any, err error) {
	prepared, err := c.prepare(ctx, p)
	defer func() { err = errors.Join(err, prepared.held.close()) }()
	if err != nil {
		return nil, err
	}
	ctx, unbind := c.bind(ctx, prepared.caller)
	defer unbind()
	ctx, cancel := withTimeout(ctx, p.Timeout)
	defer cancel()
	v, err := prepared.result(ctx)
	defer func() { err = errors.Join(err, closeTensors(v)) }()
	if err != nil {
		return nil, outcomeOf(ctx, err)
	}
	return c.outgoing(p.Tensors).value(v, 0)
}

func (c *Component) outgoing(tensors string) *outgoing {
	return &outgoing{c: c, byURL: tensors == "url", left: c.env.MaxRequest}
}

func withTimeout(ctx context.Context, seconds float64) (context.Context, context.CancelFunc) {
	if seconds == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second)))
}

// result makes the call; results of a stream become a list.
func (p *call) result(ctx context.Context) (any, error) {
	if !p.info.Stream {
		var v any
		err := p.caller.Call(ctx, p.info.Name, p.in, &v)
		return v, err
	}
	all := []any{}
	for v, err := range endpoint.Stream[any](ctx, p.caller, p.info.Name, p.in) {
		if err != nil {
			return all, err
		}
		if all = append(all, v); len(all) > maxStreamItems {
			return all, fmt.Errorf("%w: the stream has more than %d results", errTooLarge, maxStreamItems)
		}
	}
	return all, nil
}

// outcomeOf says what is known of a call that ended with an error. A call that broke off after it was sent may have
// run; an error that came from the owner in words is the function's, or the owner's refusal to run it.
func outcomeOf(ctx context.Context, err error) error {
	outcome := failed
	var remote *message.Error
	switch {
	case errors.Is(err, endpoint.ErrUnavailable), ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		outcome = unknown
	case errors.Is(err, endpoint.ErrLimit), errors.Is(err, endpoint.ErrNoEndpoint), !errors.As(err, &remote):
		// Refused before it ran: by the owner, or by this process, which could not send it.
		outcome = notRun
	}
	if outcome == notRun && errors.Is(err, errTooLarge) {
		outcome = failed // the function ran; its results were too many
	}
	return &callError{err, outcome}
}

// callFunction is call_function: the result alone.
func (c *Component) callFunction(ctx context.Context, p *callParams) (any, error) {
	return c.run(ctx, p)
}

// executed is the result of execute_function, as shared-tensor 0.1 had it.
type executed struct {
	Result any `json:"result"`
	// FunctionPath is the name of the function, ExecutionTime what the call took, in seconds.
	FunctionPath  string  `json:"function_path"`
	ExecutionTime float64 `json:"execution_time"`
}

func (c *Component) executeFunction(ctx context.Context, p *callParams) (executed, error) {
	begin := time.Now()
	result, err := c.run(ctx, p)
	if err != nil {
		return executed{}, err
	}
	name, err := p.function()
	return executed{result, name, time.Since(begin).Seconds()}, err
}

// invalidated is the result of invalidate: how many cached results were dropped.
type invalidated struct {
	Invalidated int `json:"invalidated"`
}

// invalidate drops the cached result of one call, or of all calls of a function where no arguments are given.
func (c *Component) invalidate(ctx context.Context, p *callParams) (out invalidated, err error) {
	if err := c.env.CheckWrite(ctx); err != nil {
		return out, err
	}
	prepared, err := c.prepare(ctx, p)
	defer func() { err = errors.Join(err, prepared.held.close()) }()
	if err != nil {
		return out, err
	}
	ctx, unbind := c.bind(ctx, prepared.caller)
	defer unbind()
	if len(p.Args) == 0 && len(p.Kwargs) == 0 {
		out.Invalidated, err = prepared.caller.InvalidateEndpoint(ctx, prepared.info.Name)
		return out, err
	}
	dropped, err := prepared.caller.InvalidateCall(ctx, prepared.info.Name, prepared.in)
	if dropped {
		out.Invalidated = 1
	}
	return out, err
}

// resultParams name a tensor of a result.
type resultParams struct {
	ID string `json:"id"`
}

// releaseResult forgets a tensor that a result gave by URL.
func (c *Component) releaseResult(_ context.Context, p *resultParams) (map[string]bool, error) {
	found := false
	err := c.results.forget(func(k *keptResult) bool {
		found = found || k.id == p.ID
		return k.id == p.ID
	})
	return map[string]bool{"released": found}, err
}
