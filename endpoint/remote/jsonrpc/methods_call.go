package jsonrpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// maxStreamItems limits the number of stream results in one answer.
const maxStreamItems = 100_000

// call is a call that is ready to run.
type call struct {
	caller endpoint.Caller
	info   endpoint.EndpointInfo
	in     any
	held   *incoming
	params *callParams
	limit  int64 // limit for the collected results of a stream, in bytes
}

// prepare finds the function and builds its argument. The caller closes held, also on an error.
func (c *Component) prepare(ctx context.Context, p *callParams) (*call, error) {
	prepared, err := c.locate(ctx, p)
	if err != nil {
		return prepared, err
	}
	if prepared.in, err = p.argument(prepared.info); err != nil {
		now, changed := changedFunction(ctx, c.env.Owner, prepared.info)
		if !changed {
			return prepared, err
		}
		prepared.caller, prepared.info = now.Caller, now.EndpointInfo // a worker offers another function under the name
		if prepared.in, err = p.argument(prepared.info); err != nil {
			return prepared, err
		}
	}
	prepared.held.client, _ = c.env.Owner.Client() // without a client, a tensor by reference fails with its own error
	prepared.in, err = prepared.held.value(ctx, prepared.in, 0)
	return prepared, err
}

// locate finds the function. The caller closes held, also on an error.
func (c *Component) locate(ctx context.Context, p *callParams) (*call, error) {
	prepared := &call{params: p, held: &incoming{c: c}, limit: c.env.MaxRequest}
	name, err := p.function()
	if err != nil {
		return prepared, err
	}
	if err := p.check(); err != nil {
		return prepared, err
	}
	if err := c.env.Allow(ctx, access.Call, name); err != nil {
		return prepared, &callError{err, notRun}
	}
	if _, err := c.env.Owner.Caller(name); err != nil {
		return prepared, &callError{err, notRun}
	}
	f, err := findFunction(ctx, c.env.Owner, name)
	if errors.Is(err, endpoint.ErrUnavailable) {
		return prepared, &callError{err, notRun}
	}
	if err == nil {
		prepared.caller, prepared.info = f.Caller, f.EndpointInfo
	}
	return prepared, err
}

// bind returns a context for a request to the owner. It ends when the owner leaves.
func (c *Component) bind(ctx context.Context, caller endpoint.Caller) (context.Context, context.CancelFunc) {
	if _, isOwner := caller.(*endpoint.Client); isOwner {
		return c.env.Owner.Bind(ctx)
	}
	return ctx, func() {}
}

// run calls the function and returns its result as a JSON value.
func (c *Component) run(ctx context.Context, p *callParams) (out any, err error) {
	ctx, cancel := withTimeout(ctx, p.Timeout) // prepare has checked the timeout
	defer cancel()
	prepared, err := c.prepare(ctx, p)
	defer func() { err = errors.Join(err, prepared.held.close()) }()
	if err != nil {
		return nil, err
	}
	ctx, unbind := c.bind(ctx, prepared.caller)
	defer unbind()
	v, err := prepared.result(ctx)
	defer func() { err = errors.Join(err, closeTensors(v)) }()
	if err != nil {
		return nil, outcomeOf(ctx, err)
	}
	return c.outgoing(ctx, p.Tensors).value(v, 0)
}

// outgoing returns the encoder of results for the response of ctx.
func (c *Component) outgoing(ctx context.Context, tensors string) *outgoing {
	return &outgoing{sender: rights.Sender(ctx), c: c, byURL: tensors == "url", reply: replyFrom(ctx)}
}

func withTimeout(ctx context.Context, seconds float64) (context.Context, context.CancelFunc) {
	if seconds <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second)))
}

// result runs the call. The results of a stream are returned as a list.
func (p *call) result(ctx context.Context) (any, error) {
	if !p.info.Stream {
		var v any
		err := p.caller.Call(ctx, p.info.Name, p.in, &v)
		return v, err
	}
	all, left := []any{}, p.limit
	for v, err := range endpoint.Stream[any](ctx, p.caller, p.info.Name, p.in) {
		if err != nil {
			return all, err
		}
		if all = append(all, v); len(all) > maxStreamItems {
			return all, fmt.Errorf("%w: the stream has more than %d results", models.ErrTooLarge, maxStreamItems)
		}
		if left -= heldBytes(v); left < 0 {
			return all, fmt.Errorf("%w: the results of the stream are more than %d bytes", models.ErrTooLarge, p.limit)
		}
	}
	return all, nil
}

// heldBytes estimates the memory of a decoded value in this process. Tensors do not count because they stay in the
// owner's memory.
func heldBytes(v any) int64 {
	const header = 16
	n := int64(header)
	switch v := v.(type) {
	case string:
		n += int64(len(v))
	case []byte:
		n += int64(len(v))
	case []any:
		for _, below := range v {
			n += heldBytes(below)
		}
	case map[string]any:
		for key, below := range v {
			n += header + int64(len(key)) + heldBytes(below)
		}
	case map[any]any:
		for key, below := range v {
			n += heldBytes(key) + heldBytes(below)
		}
	}
	return n
}

// outcomeOf adds the outcome to the error of a call. A call that was interrupted after it was sent may have run. An
// error that the owner returned comes from the function, or means that the owner refused to run it.
func outcomeOf(ctx context.Context, err error) error {
	outcome := failed
	var remote *message.Error
	interrupted := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) && !errors.Is(err, task.ErrCancelled)
	switch {
	case errors.Is(err, endpoint.ErrUnavailable), ctx.Err() != nil, interrupted:
		outcome = unknown
	case errors.Is(err, endpoint.ErrLimit), errors.Is(err, endpoint.ErrNoEndpoint), !errors.As(err, &remote):
		// Refused before it ran, by the owner or because this process could not send it.
		outcome = notRun
	}
	if outcome == notRun && errors.Is(err, models.ErrTooLarge) {
		outcome = failed // the function ran, but returned too many results
	}
	return &callError{err, outcome}
}

// callFunction implements call_function, which returns only the result.
func (c *Component) callFunction(ctx context.Context, p *callParams) (any, error) {
	return c.run(ctx, p)
}

// executed is the result of execute_function in the format of shared-tensor 0.1.
type executed struct {
	Result any `json:"result"`
	// FunctionPath is the name of the function. ExecutionTime is the duration of the call in seconds.
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

// invalidated is the result of invalidate: the number of dropped cache entries.
type invalidated struct {
	Invalidated int `json:"invalidated"`
}

// invalidate drops the cached result of one call, or of all calls of a function if there are no arguments.
func (c *Component) invalidate(ctx context.Context, p *callParams) (out invalidated, err error) {
	if err := c.env.AllowChange(ctx); err != nil {
		return out, err
	}
	defer func() {
		if err == nil {
			name, _ := p.function() // it was found
			c.env.Audited(ctx, gateway.ChangeInvalidate, "function", name, "results", out.Invalidated)
		}
	}()
	all, prepare := len(p.Args) == 0 && len(p.Kwargs) == 0, c.prepare
	if all {
		prepare = c.locate
	}
	prepared, err := prepare(ctx, p)
	defer func() { err = errors.Join(err, prepared.held.close()) }()
	if err != nil {
		return out, err
	}
	ctx, unbind := c.bind(ctx, prepared.caller)
	defer unbind()
	if all {
		out.Invalidated, err = prepared.caller.InvalidateEndpoint(ctx, prepared.info.Name)
		return out, err
	}
	dropped, err := prepared.caller.InvalidateCall(ctx, prepared.info.Name, prepared.in)
	if dropped {
		out.Invalidated = 1
	}
	return out, err
}

// resultParams identifies a result tensor.
type resultParams struct {
	ID string `json:"id"`
}

// releaseResult drops a result tensor that was returned by URL.
func (c *Component) releaseResult(ctx context.Context, p *resultParams) (map[string]bool, error) {
	found, err := c.results.RemoveOf(rights.Sender(ctx), p.ID)
	return map[string]bool{"released": found}, err
}
