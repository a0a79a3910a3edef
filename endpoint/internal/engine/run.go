package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task/panics"
)

// Obtain returns the result of a call, cached or made now, and whether it was cached. It takes the arguments. The
// caller releases the result.
func (e *Engine) Obtain(ctx context.Context, d *Definition, a *Arguments) (_ ResultRef, cached bool, err error) {
	defer e.Recovered(&err, d, "") // the function's error may panic when it is asked what it is
	// A run belongs to all its waiters. It may go on when the caller whose arguments it has is gone, so the arguments
	// go with the run, if there is one.
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
		// The run that held the key before may have made what this call wants: it is looked for after that. So the turn
		// ends when the result is in the cache, and the run is over, which may outlast a caller that leaves.
		if err := e.lockSerialized(ctx, d, a); err != nil {
			return ResultRef{}, false, err
		}
		if a.unlock != nil {
			a.unlock = second(a.unlock)
			defer a.unlock()
		}
	}
	made := false
	for {
		ref, err := get(ctx, key, func(ctx context.Context) (*Result, error) {
			if !a.Claim() {
				return nil, cache.ErrAbandoned // its caller left before it began
			}
			made = true
			return e.Run(ctx, d, a)
		})
		if errors.Is(err, cache.ErrAbandoned) && ctx.Err() == nil && !a.claimed.Load() {
			continue // joined a run that never began: ours will
		}
		if err != nil {
			return ResultRef{}, false, err
		}
		if !made {
			d.Hits.Add(1)
		}
		return ResultRef{ref.Value(), ref}, !made, nil
	}
}

// Run calls the function and encodes its result. It takes the arguments. The caller releases the result.
func (e *Engine) Run(ctx context.Context, d *Definition, a *Arguments) (r *Result, err error) {
	defer a.close()
	if d.Options.Timeout > 0 {
		limited, cancel := withTimeout(ctx, d.Options.Timeout)
		defer cancel()
		defer func() { err = limited.timeoutError(err) }()
		ctx = limited
	}
	if err := e.lockSerialized(ctx, d, a); err != nil {
		return nil, err
	}
	start := time.Now()
	r, err = e.invoke(ctx, d, a)
	d.Latency.add(time.Since(start), err != nil)
	return r, err
}

// lockSerialized locks the key of a Serialized endpoint, at most one call of which runs at a time. Closing the
// arguments unlocks it.
func (e *Engine) lockSerialized(ctx context.Context, d *Definition, a *Arguments) error {
	if d.Options.Serialized == nil || a.unlock != nil {
		return nil
	}
	if d.Options.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Options.Timeout)
		defer cancel()
	}
	var err error
	if a.unlock, err = e.serialized.lock(ctx, d.Name+"\x00"+d.Options.Serialized.Expand(reflect.ValueOf(a.Value).Elem())); err != nil {
		return fmt.Errorf("endpoint %q: wait for its turn: %w", d.Name, err)
	}
	return nil
}

// invoke calls the function and encodes what it returns. A panic in either is an error.
func (e *Engine) invoke(ctx context.Context, d *Definition, a *Arguments) (r *Result, err error) {
	defer e.Recovered(&err, d, "")
	if ctx.Err() != nil {
		return nil, fmt.Errorf("endpoint %q: %w", d.Name, context.Cause(ctx))
	}
	out, err := d.Invoke(ctx, a.Value)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", d.Name, err)
	}
	if r, err = e.Encode(out); err != nil {
		return nil, fmt.Errorf("endpoint %q: result: %w", d.Name, err)
	}
	e.nameResult(r, d, a.Storages)
	return r, nil
}

// Encode makes a result of a value, of which it takes the tensors. A payload is encoded already.
func (e *Engine) Encode(value any) (*Result, error) {
	if p, ok := value.(*codec.Payload); ok {
		if err := e.fits(p); err != nil {
			p.Close()
			return nil, err
		}
		return newResult(*p), nil
	}
	defer codec.CloseValue(value) // the payload has references of its own
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

// What a frame has beside a payload, at most: its envelope, and a handle for each storage.
const (
	EnvelopeBytes = 1024
	HandleBytes   = 256
)

// fits refuses a payload that no frame could carry, before anybody keeps it.
func (e *Engine) fits(p *codec.Payload) error {
	frame, files := inproc.FrameLimits(e.frame)
	if n := int64(len(p.Value)) + int64(len(p.Storages))*HandleBytes + EnvelopeBytes; n > frame {
		return fmt.Errorf("%w: %d bytes beside the tensors; a frame has at most %d", status.ErrTooLarge, len(p.Value), frame)
	}
	if len(p.Storages) > files {
		return fmt.Errorf("%w: %d storages; a frame has at most %d", status.ErrTooLarge, len(p.Storages), files)
	}
	return nil
}

// An owner runs code of others beside the functions of its endpoints: what their types do to encode and decode
// themselves, with bytes that a client chose, and what their errors do when they are asked what they are. None of it
// may end the process, for the process has the memory of all.

// Recovered is deferred around such code. It makes a panic the error of what was done, with the endpoint's name if
// there is an endpoint, and tells the log, which also gets the stack.
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
