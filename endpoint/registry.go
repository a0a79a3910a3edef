package endpoint

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Registry holds the endpoints of a server: Go functions that other processes call by name. Its methods are safe for
// concurrent use.
type Registry struct {
	defaults []Option

	mu        sync.RWMutex
	endpoints map[string]*engine.Definition
}

// NewRegistry returns an empty registry, like the zero Registry, with default options. An endpoint's own options take
// precedence: with NewRegistry(Cached()), every endpoint is cached unless it has [NoCache].
func NewRegistry(defaults ...Option) *Registry { return &Registry{defaults: slices.Clone(defaults)} }

// Register adds fn under a name. In and Out may be scalars, strings, bytes, slices, arrays, maps, structs, pointers,
// *tensor.Tensor and *module.StateDict, nested freely.
//
// fn runs once for each call unless an option changes that.
//
// fn borrows the tensors of its argument. They are closed when fn returns, so fn must alias what it keeps. The endpoint
// takes the tensors of the result and closes them when the result has been sent or leaves the cache, so fn must return
// aliases of tensors that it keeps. Cached results must not be written after fn returns them. ctx ends when the caller
// cancels, disconnects or reaches its deadline. A panic becomes an error with the endpoint's name.
//
// Errors: [ErrRegistered], and [ErrConfiguration] for an invalid name, a nil function, a type that cannot be sent, or
// invalid options.
func Register[In, Out any](r *Registry, name string, fn func(ctx context.Context, in In) (Out, error), opts ...Option) error {
	d := &engine.Definition{Name: name, In: reflect.TypeFor[In](), Out: reflect.TypeFor[Out]()}
	d.Decode = func(raw message.RawMessage, storages []*tensor.Storage) (any, []interface{ Close() error }, error) {
		in := new(In)
		made, err := codec.DecodePayload(raw, storages, in, true)
		return in, made, err
	}
	if fn != nil {
		d.Invoke = func(ctx context.Context, in any) (any, error) { return fn(ctx, *in.(*In)) }
	}
	return r.add(d, opts)
}

// add validates the definition and adds it.
func (r *Registry) add(d *engine.Definition, opts []Option) error {
	err := fmt.Errorf("%w: the registry is nil", status.ErrInvalid)
	if r != nil {
		err = check(d, r.defaults, opts)
	}
	if err != nil {
		return fmt.Errorf("register %s: %w", status.Shown(d.Name), status.Configuration(err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints == nil {
		r.endpoints = map[string]*engine.Definition{}
	}
	if r.endpoints[d.Name] != nil {
		return fmt.Errorf("register %q: %w", d.Name, status.ErrRegistered)
	}
	r.endpoints[d.Name] = d
	return nil
}

// check validates a definition and applies its options.
func check(d *engine.Definition, defaults, own []Option) error {
	if err := catalog.CheckName(d.Name); err != nil {
		return fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	if d.Invoke == nil {
		return fmt.Errorf("%w: the function is nil", status.ErrInvalid)
	}
	for _, t := range []reflect.Type{d.In, d.Out} {
		if err := codec.CheckType(t); err != nil {
			return err
		}
	}
	return applyOptions(d, defaults, own)
}

// find returns the endpoint with the given name. Its error suggests a similar name.
func (r *Registry) find(name string) (*engine.Definition, error) {
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

// lookup is find for a name within a message. It returns nil if there is no such endpoint.
func (r *Registry) lookup(name []byte) *engine.Definition {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.endpoints[string(name)]
}

// list returns the endpoints, sorted by name.
func (r *Registry) list() []*engine.Definition {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*engine.Definition, 0, len(r.endpoints))
	for _, d := range r.endpoints {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b *engine.Definition) int { return strings.Compare(a.Name, b.Name) })
	return list
}
