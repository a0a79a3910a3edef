package endpoint

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Registry is the endpoints of a server: Go functions that other processes call by name. Its methods are safe for concurrent use.
type Registry struct {
	defaults []Option

	mu        sync.RWMutex
	endpoints map[string]*definition
}

// NewRegistry returns a registry without endpoints, which the zero Registry is too. The options are those of each endpoint that does not say
// otherwise by its own: NewRegistry(Cached()) has every function cached but those with [NoCache].
func NewRegistry(defaults ...Option) *Registry { return &Registry{defaults: slices.Clone(defaults)} }

// Register adds fn under a name. In and Out are what can cross: scalars, strings, bytes, slices, arrays, maps, structs,
// pointers, *tensor.Tensor and *module.StateDict, nested freely.
//
// fn runs once for each call, unless an option asks for more.
//
// fn borrows the tensors of its argument: the endpoint closes them when fn has returned, so what fn keeps it clones. The endpoint takes the
// tensors of the result: it closes them when the result has been sent or is no longer cached, so what fn hands out of its own it clones.
// Where results are cached, fn has given its word that nobody writes to them any more.
// ctx ends when the caller cancels, its deadline passes, or it goes away. A panic becomes an error with the endpoint's name.
//
// Errors: [ErrRegistered], [ErrConfiguration] for a bad name, no function, a type that cannot cross or options that make no sense.
func Register[In, Out any](r *Registry, name string, fn func(ctx context.Context, in In) (Out, error), opts ...Option) error {
	d := &definition{name: name, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}
	d.decode = func(raw message.RawMessage, storages []*tensor.Storage) (any, []interface{ Close() error }, error) {
		in := new(In)
		made, err := codec.DecodePayload(raw, storages, in, true)
		return in, made, err
	}
	if fn != nil {
		d.invoke = func(ctx context.Context, in any) (any, error) { return fn(ctx, *in.(*In)) }
	}
	return r.add(d, opts)
}

// definition is one endpoint.
type definition struct {
	name    string
	in, out reflect.Type
	options options

	// decode makes the argument, a pointer to In, and returns what has to be closed when it is done with.
	decode func(raw message.RawMessage, storages []*tensor.Storage) (any, []interface{ Close() error }, error)
	// invoke calls the function.
	invoke func(ctx context.Context, in any) (any, error)
	// stream calls a function whose results come one by one; nil for others.
	stream func(ctx context.Context, in any, send func(any) error) error

	calls    atomic.Uint64 // also of tasks and streams
	hits     atomic.Uint64 // calls with a result that was there, or that another call's run made
	failures atomic.Uint64 // calls that ended with an error
	latency  latency
	uncached atomic.Uint64 // calls that were not cached because of the memory of their arguments
	pace     pace
}

// add checks the definition and enters it.
func (r *Registry) add(d *definition, opts []Option) error {
	err := fmt.Errorf("%w: there is no registry", status.ErrInvalid)
	if r != nil {
		err = d.check(r.defaults, opts)
	}
	if err != nil {
		return fmt.Errorf("register %s: %w", status.Shown(d.name), status.Configuration(err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints == nil {
		r.endpoints = map[string]*definition{}
	}
	if r.endpoints[d.name] != nil {
		return fmt.Errorf("register %q: %w", d.name, status.ErrRegistered)
	}
	r.endpoints[d.name] = d
	return nil
}

// check refuses a definition that makes no sense, and takes the options over.
func (d *definition) check(defaults, own []Option) error {
	if err := catalog.CheckName(d.name); err != nil {
		return fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	if d.invoke == nil {
		return fmt.Errorf("%w: there is no function", status.ErrInvalid)
	}
	for _, t := range []reflect.Type{d.in, d.out} {
		if err := codec.CheckType(t); err != nil {
			return err
		}
	}
	return d.options.apply(d, defaults, own)
}

// find returns the endpoint of that name. Its error names the one that was probably meant.
func (r *Registry) find(name string) (*definition, error) {
	if r == nil {
		return nil, fmt.Errorf("endpoint %s: %w", status.Shown(name), status.ErrNoEndpoint)
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if d := r.endpoints[name]; d != nil {
		return d, nil
	}
	if meant := catalog.Nearest(name, maps.Keys(r.endpoints)); meant != "" {
		return nil, fmt.Errorf("endpoint %s: %w; did you mean %q?", status.Shown(name), status.ErrNoEndpoint, meant)
	}
	return nil, fmt.Errorf("endpoint %s: %w", status.Shown(name), status.ErrNoEndpoint)
}

// lookup is find for a name that is a part of a message; nil where there is no such endpoint.
func (r *Registry) lookup(name []byte) *definition {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.endpoints[string(name)]
}

// list returns the endpoints in the order of their names.
func (r *Registry) list() []*definition {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*definition, 0, len(r.endpoints))
	for _, d := range r.endpoints {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b *definition) int { return strings.Compare(a.name, b.name) })
	return list
}
