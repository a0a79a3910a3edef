package endpoint

import (
	"context"
	"fmt"
	"reflect"
	"slices"

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
	defaults    []Option
	definitions engine.Registry
}

// NewRegistry returns an empty registry, like the zero Registry, with default options. An endpoint's own options take
// precedence: with NewRegistry(Cached()), every endpoint is cached unless it has [NoCache].
func NewRegistry(defaults ...Option) *Registry { return &Registry{defaults: slices.Clone(defaults)} }

// Len returns the number of registered endpoints.
func (r *Registry) Len() int { return len(r.registered().List()) }

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
	return r.definitions.Add(d)
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

// registered returns the definitions of a registry, which may be nil.
func (r *Registry) registered() *engine.Registry {
	if r == nil {
		return nil
	}
	return &r.definitions
}
