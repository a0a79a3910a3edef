package endpointtest

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Fake stands in for a client where a program takes [endpoint.Calls]: functions of the test answer its calls, without
// an owner, a socket or an encoding. Arguments and results are passed as they are, tensors too: the program closes what
// the functions return. For all else that owners do there is [Open]. Its methods are safe for concurrent use once the
// maps are filled.
type Fake struct {
	// Funcs answer calls, by the name of the endpoint. What they return goes where the caller wants it, which has to be
	// of the same type.
	Funcs map[string]func(ctx context.Context, in any) (any, error)
	// Streams answer calls of endpoints whose results come one by one.
	Streams map[string]func(ctx context.Context, in any) iter.Seq2[any, error]

	mu    sync.Mutex
	calls []Invocation
}

var _ endpoint.Calls = (*Fake)(nil)

// Invocation is a call that a program made.
type Invocation struct {
	// Endpoint is the name of the endpoint, In the argument.
	Endpoint string
	In       any
}

// Invocations are the calls and streams that the program made, the first one first.
func (f *Fake) Invocations() []Invocation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *Fake) note(name string, in any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Invocation{name, in})
}

// Call implements [endpoint.Calls]. A name without a function is [endpoint.ErrNoEndpoint].
func (f *Fake) Call(ctx context.Context, name string, in, out any) error {
	f.note(name, in)
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("call %q: %w", name, err)
	}
	fn := f.Funcs[name]
	if fn == nil {
		return fmt.Errorf("call %q: %w in Fake.Funcs", name, endpoint.ErrNoEndpoint)
	}
	got, err := fn(ctx, in)
	if err == nil {
		err = assign(out, got)
	}
	if err != nil {
		return fmt.Errorf("call %q: %w", name, err)
	}
	return nil
}

// Stream implements [endpoint.Calls].
func (f *Fake) Stream(ctx context.Context, name string, in any) iter.Seq2[func(out any) error, error] {
	return func(yield func(func(out any) error, error) bool) {
		f.note(name, in)
		fn := f.Streams[name]
		if fn == nil {
			yield(nil, fmt.Errorf("stream %q: %w in Fake.Streams", name, endpoint.ErrNoEndpoint))
			return
		}
		for got, err := range fn(ctx, in) {
			if err == nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				yield(nil, fmt.Errorf("stream %q: %w", name, err))
				return
			}
			if !yield(func(out any) error { return assign(out, got) }, nil) {
				return
			}
		}
	}
}

// assign puts a result where the caller wants it, which is nowhere for nil.
func assign(out, got any) error {
	if out == nil {
		return nil
	}
	to := reflect.ValueOf(out)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return fmt.Errorf("%w: results go into a pointer, not a %T", endpoint.ErrInvalid, out)
	}
	to = to.Elem()
	from := reflect.ValueOf(got)
	switch {
	case !from.IsValid():
		to.SetZero()
	case from.Type().AssignableTo(to.Type()):
		to.Set(from)
	default:
		return fmt.Errorf("%w: the function returned a %T, the caller wants a %v", endpoint.ErrInvalid, got, to.Type())
	}
	return nil
}
