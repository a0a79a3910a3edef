package endpointtest

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// Fake implements [endpoint.Calls] with functions of the test, without an owner, a socket or encoding. Arguments and
// results, including tensors, are passed unchanged: the program closes what the functions return. Use [Open] for
// everything else. Its methods are safe for concurrent use once the maps are filled.
type Fake struct {
	// Funcs maps endpoint names to functions for Call. Their results must have the type that the caller expects.
	Funcs map[string]func(ctx context.Context, in any) (any, error)
	// Streams maps endpoint names to functions for Stream.
	Streams map[string]func(ctx context.Context, in any) iter.Seq2[any, error]

	mu    sync.Mutex
	calls []Invocation
}

var _ endpoint.Calls = (*Fake)(nil)

// Invocation is a call that the program made.
type Invocation struct {
	// Endpoint is the name of the endpoint and In the argument.
	Endpoint string
	In       any
}

// Invocations returns the program's calls and streams, oldest first.
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

// Call implements [endpoint.Calls]. It returns [endpoint.ErrNoEndpoint] if there is no function with the name.
func (f *Fake) Call(ctx context.Context, name string, in, out any) error {
	f.note(name, in)
	if err := ended.Cause(ctx); err != nil {
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
				err = ended.Cause(ctx)
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

// assign sets *out to got. It does nothing if out is nil.
func assign(out, got any) error {
	if out == nil {
		return nil
	}
	to := reflect.ValueOf(out)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return fmt.Errorf("%w: the result needs a pointer, not %T", endpoint.ErrInvalid, out)
	}
	to = to.Elem()
	from := reflect.ValueOf(got)
	switch {
	case !from.IsValid():
		to.SetZero()
	case from.Type().AssignableTo(to.Type()):
		to.Set(from)
	default:
		return fmt.Errorf("%w: the function returned %T, but the caller expects %v", endpoint.ErrInvalid, got, to.Type())
	}
	return nil
}
