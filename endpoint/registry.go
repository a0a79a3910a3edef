package endpoint

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
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
// *tensor.Tensor and *module.StateDict, nested freely. A value arrives as it is, except that a nil slice or map arrives
// empty. A type whose values would lose content is refused, such as one with only unexported fields.
//
// fn runs once for each call unless an option changes that.
//
// fn borrows the tensors of its argument. They are closed when fn returns, so fn must alias what it keeps. The endpoint
// takes the tensors of the result and closes them when the result has been sent or leaves the cache, so fn must return
// aliases or views of tensors that it keeps. Cached results must not be written after fn returns them. ctx ends when the caller
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

// ResultDevice returns a device that allocates the memory of a function's results. ctx is the context of the call. If
// the same client calls repeatedly and closes its results, their memory is reused and stays mapped on both sides. A
// result is then one message, whatever its size. Fresh memory costs more than the rest of such a call.
//
//	out, err := tensor.Empty(endpoint.ResultDevice(ctx, dev), tensor.Float32, shape)
//
// [tensor.Empty], and functions that fill the tensor such as [tensor.FromSlice], get memory with the contents
// of the client's last result; [tensor.Zeros] zeroes it. The memory is used for one client only. It is not reused while
// a tensor in it is open on either side, or after it was published, passed on or cached.
//
// A function that keeps a tensor in this memory prevents its reuse. Only the owner can map it writable, so the receiver
// cannot pass it to an endpoint with [WritableArguments]. ResultDevice returns dev itself if such memory is
// unavailable: for clients in this process or without support for it; for cached, managed, task and stream endpoints;
// for GPU memory; and beyond [Limits].KeptBytes.
func ResultDevice(ctx context.Context, dev driver.Device) driver.Device {
	return server.ResultDevice(ctx, dev)
}
