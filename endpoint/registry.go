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

// Registry is the endpoints of a server: Go functions that other processes call by name. Its methods are safe for
// concurrent use.
type Registry struct {
	defaults []Option

	mu        sync.RWMutex
	endpoints map[string]*engine.Definition
}

// NewRegistry returns a registry without endpoints, which the zero Registry is too. The options are those of each
// endpoint that does not say otherwise by its own: NewRegistry(Cached()) has every function cached but those with
// [NoCache].
func NewRegistry(defaults ...Option) *Registry { return &Registry{defaults: slices.Clone(defaults)} }

// Register adds fn under a name. In and Out are what can cross: scalars, strings, bytes, slices, arrays, maps, structs,
// pointers, *tensor.Tensor and *module.StateDict, nested freely.
//
// fn runs once for each call, unless an option asks for more.
//
// fn borrows the tensors of its argument: the endpoint closes them when fn has returned, so what fn keeps it clones.
// The endpoint takes the tensors of the result: it closes them when the result has been sent or is no longer cached, so
// what fn hands out of its own it clones. Where results are cached, fn has given its word that nobody writes to them
// any more. ctx ends when the caller cancels, its deadline passes, or it goes away. A panic becomes an error with the
// endpoint's name.
//
// Errors: [ErrRegistered], [ErrConfiguration] for a bad name, no function, a type that cannot cross or options that
// make no sense.
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

// add checks the definition and enters it.
func (r *Registry) add(d *engine.Definition, opts []Option) error {
	err := fmt.Errorf("%w: there is no registry", status.ErrInvalid)
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

// check refuses a definition that makes no sense, and takes the options over.
func check(d *engine.Definition, defaults, own []Option) error {
	if err := catalog.CheckName(d.Name); err != nil {
		return fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	if d.Invoke == nil {
		return fmt.Errorf("%w: there is no function", status.ErrInvalid)
	}
	for _, t := range []reflect.Type{d.In, d.Out} {
		if err := codec.CheckType(t); err != nil {
			return err
		}
	}
	return applyOptions(d, defaults, own)
}

// find returns the endpoint of that name. Its error names the one that was probably meant.
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

// lookup is find for a name that is a part of a message; nil where there is no such endpoint.
func (r *Registry) lookup(name []byte) *engine.Definition {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.endpoints[string(name)]
}

// list returns the endpoints in the order of their names.
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
