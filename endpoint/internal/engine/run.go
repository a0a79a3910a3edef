package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task/panics"
)

// Obtain returns the result of a call, from the cache or by running the function. cached reports whether it came from
// the cache or from another call's run. It takes the arguments. The caller releases the result.
func (e *Engine) Obtain(ctx context.Context, d *Definition, a *Arguments) (_ ResultRef, cached bool, err error) {
	defer e.Recovered(&err, d, "") // the Error or Is method of the function's error may panic
	// A run is shared by all callers that wait for it, and may outlast the caller whose arguments it uses. If there is
	// a run, it owns the arguments.
	defer a.Drop()
	key, keyed := d.Key(a)
	if !keyed {
		e.uncached(d)
		a.Claim()
		r, err := e.Run(ctx, d, a)
		return ResultRef{Result: r}, false, err
	}
	get := e.Results.Get
	if d.Options.NoSingleFlight {
		get = e.Results.GetAlone
		if ref, ok := e.Results.Lookup(key); ok {
			d.Hits.Add(1)
			return ResultRef{ref.Value(), ref}, true, nil
		}
		// Looks the result up only when it is this call's turn, because the previous one may have computed it. The turn ends
		// when the result is in the cache and the run has ended, which may be after the caller has left.
		if err := e.takeTurn(ctx, d, a); err != nil {
			return ResultRef{}, false, err
		}
		if a.turn != nil {
			a.endTurn = afterCalls(2, a.endTurn)
			defer a.endTurn()
		}
	}
	ran := false
	for {
		ref, err := get(ctx, key, func(ctx context.Context) (*Result, error) {
			if !a.Claim() {
				return nil, cache.ErrAbandoned // the caller left before the run began
			}
			ran = true
			return e.Run(ctx, d, a)
		})
		if errors.Is(err, cache.ErrAbandoned) && ctx.Err() == nil && !a.claimed.Load() {
			continue // joined a run that never began; retry with this call's own
		}
		if err != nil {
			return ResultRef{}, false, err
		}
		if !ran {
			d.Hits.Add(1)
		}
		return ResultRef{ref.Value(), ref}, !ran, nil
	}
}

// Run calls the function and encodes its result. It takes the arguments. The caller releases the result.
func (e *Engine) Run(ctx context.Context, d *Definition, a *Arguments) (r *Result, err error) {
	defer a.close()
	if d.Options.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Options.Timeout)
		defer cancel()
	}
	if err := e.takeTurn(ctx, d, a); err != nil {
		return nil, err
	}
	if a.turn != nil {
		ctx = a.turn.context(ctx)
	}
	start := time.Now()
	r, err = e.invoke(ctx, d, a)
	d.Latency.add(time.Since(start), err != nil)
	return r, err
}

// takeTurn waits until no other call of a Serialized endpoint with the same key runs. Closing the arguments ends the turn.
func (e *Engine) takeTurn(ctx context.Context, d *Definition, a *Arguments) error {
	if d.Options.Serialized == nil || a.turn != nil {
		return nil
	}
	if d.Options.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Options.Timeout)
		defer cancel()
	}
	own, err := e.serialized.wait(ctx, d.Name, d.Options.Serialized.Expand(reflect.ValueOf(a.Value).Elem()))
	if err != nil {
		return fmt.Errorf("endpoint %q: wait for a call with the same key: %w", d.Name, err)
	}
	a.turn, a.endTurn = own, own.end
	return nil
}

// afterCalls returns a function whose nth call calls f. Its other calls have no effect.
func afterCalls(n uint32, f func()) func() {
	var calls atomic.Uint32
	return func() {
		if calls.Add(1) == n {
			f()
		}
	}
}

// invoke calls the function and encodes its result. It returns a panic in either as an error.
func (e *Engine) invoke(ctx context.Context, d *Definition, a *Arguments) (r *Result, err error) {
	defer e.Recovered(&err, d, "")
	if ctx.Err() != nil {
		return nil, fmt.Errorf("endpoint %q: %w", d.Name, context.Cause(ctx))
	}
	out, err := d.Invoke(ctx, a.Value)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", d.Name, status.Ran(err))
	}
	if r, err = e.Encode(out); err != nil {
		return nil, fmt.Errorf("endpoint %q: result: %w", d.Name, err)
	}
	e.nameResult(r, d, a.Storages)
	return r, nil
}

// Encode encodes a value as a result and closes the value's tensors. It returns a payload unchanged.
func (e *Engine) Encode(value any) (*Result, error) {
	if p, ok := value.(*codec.Payload); ok {
		if err := e.fits(p); err != nil {
			p.Close()
			return nil, err
		}
		return newResult(*p), nil
	}
	defer codec.CloseValue(value) // the payload has its own references
	p, err := codec.EncodePayload(value)
	if err != nil {
		return nil, err
	}
	if err := e.fits(&p); err != nil {
		p.Close()
		return nil, err
	}
	return newResult(p), nil
}

// Maximum size of a frame without its payload: the envelope, and a handle for each storage.
const (
	EnvelopeBytes = 1024
	HandleBytes   = 256
)

// fits returns an error if the payload exceeds the limits of a frame. It is called before the payload is kept.
func (e *Engine) fits(p *codec.Payload) error {
	frame, files := e.frame.Frame, e.frame.Files
	if n := int64(len(p.Value)) + int64(len(p.Storages))*HandleBytes + EnvelopeBytes; n > frame {
		return fmt.Errorf("%w: %d bytes besides the tensors, the limit of a frame is %d", status.ErrTooLarge, len(p.Value), frame)
	}
	if len(p.Storages) > files {
		return fmt.Errorf("%w: %d storages, the limit of a frame is %d", status.ErrTooLarge, len(p.Storages), files)
	}
	return nil
}

// Besides functions, a server runs other user code: marshalers of argument and result types, with input from clients,
// and methods of errors. A panic there must not end the process, because it holds the memory of all clients.

// Recovered is deferred around such code. It turns a panic into *err, with the name of the endpoint if d is not nil,
// and logs it with the stack.
func (e *Engine) Recovered(err *error, d *Definition, part string) {
	v := recover()
	if v == nil {
		return
	}
	p := panics.New(v)
	if d == nil {
		e.log.Error("a request panicked", "value", p.Text(), "stack", string(p.Stack))
		*err = p
		return
	}
	e.log.Error("endpoint panicked", "endpoint", d.Name, "value", p.Text(), "stack", string(p.Stack))
	*err = fmt.Errorf("endpoint %q: %s%w", d.Name, part, p)
}
