package endpoint

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Ref is the typed managed result of a call: the value and one reference to the object at its server. The server keeps
// the object while any session has a reference to it. A [Handle], in contrast, is an acquired version of a published
// model.
//
// The reference belongs to the connection. After a reconnection to the same server, the client acquires it again. If
// the server no longer has the object, or another server answers, the Ref becomes stale and Done is closed. The value's
// memory is mapped by this process and stays valid until Close, even if the object is destroyed.
//
// A Ref that is not closed keeps the object at its server. If the Ref and the tensors of its value become unreachable,
// the reference is released with a warning. The garbage collector cannot track slices and addresses of the memory
// ([tensor.Data]). If any were returned, the reference is kept until the client closes and counts as a leak
// ([driver.Leaks]).
//
// A Ref is an io.Closer. Its methods are safe for concurrent use.
type Ref[T any] struct {
	objects Objects
	ref     *client.Reference
	net     *leakGuard
	value   T
	close   sync.Once
}

// CallManaged is [Call] for an endpoint with managed results. It keeps the reference to the result's object. The caller
// closes the Ref. A [Caller] is a [Client], a [Server] or a struct that embeds one. If the result is not a managed object, the error is [ErrInvalid].
func CallManaged[T any](ctx context.Context, c Caller, name string, in any) (*Ref[T], error) {
	if err := checkCaller(c); err != nil {
		return nil, fmt.Errorf("call %s: %w", status.Shown(name), err)
	}
	return keepResult[T](ctx, c, client.Call{Name: name, In: in}, "endpoint", name)
}

// ResultManaged is [Task.Result] with a typed value that keeps the reference to the result's object, with the errors of
// [CallManaged]. Each call has a separate reference. The caller closes the Ref.
func ResultManaged[T any](ctx context.Context, t *Task) (*Ref[T], error) {
	if t == nil {
		return nil, fmt.Errorf("%w: the task is nil", ErrInvalid)
	}
	return keepResult[T](ctx, t.of, client.Call{Task: t.at}, "task", t.ID)
}

// keepResult makes a call and keeps the reference to its result. what and name identify the call in warnings.
func keepResult[T any](ctx context.Context, h Caller, call client.Call, what, name string) (*Ref[T], error) {
	r := &Ref[T]{objects: h}
	var err error
	if r.ref, err = h.keep(ctx, call, &r.value); err != nil {
		return nil, err
	}
	if r.ref == nil {
		codec.CloseValue(r.value)
		return nil, fmt.Errorf("%s %s: %w: the result is not a managed object", what, status.Shown(name), status.ErrInvalid)
	}
	r.guard(what, name)
	return r, nil
}

// guard releases the reference when the Ref becomes unreachable, and reports where the Ref was created.
func (r *Ref[T]) guard(what, name string) {
	ref := r.ref
	r.net = newLeakGuard(r, "reference to an object", codec.StoragesIn(r.value), func(leak *driver.Leak) { ref.Collected(leak, what, name) })
}

// Value returns the result. It is borrowed: its tensors are valid until Close, and the caller must not close them.
func (r *Ref[T]) Value() T { return r.value }

// ID returns the id of the object at its server.
func (r *Ref[T]) ID() string {
	return r.ref.ID
}

// ServerID returns the id of the object's server.
func (r *Ref[T]) ServerID() string {
	return r.ref.Server
}

// Done returns a channel that is closed when Err becomes non-nil.
func (r *Ref[T]) Done() <-chan struct{} {
	return r.ref.Done()
}

// Err returns nil while the reference is valid as far as was reported to this process. It returns a [*StaleError] if
// the object is gone, and [ErrClosed] if the reference was released or its client closed.
func (r *Ref[T]) Err() error {
	return r.ref.Err()
}

// Info requests a description of the object from the server. It returns a [*StaleError] if the object is gone.
func (r *Ref[T]) Info(ctx context.Context) (ObjectInfo, error) {
	if err := r.Err(); err != nil {
		return ObjectInfo{}, err
	}
	return r.objects.EnsureLive(ctx, r.ID(), r.ServerID())
}

// Release releases the reference and keeps the value. It returns true if the server released a reference, and false on
// a second call or if the object is gone. If ctx ends before the answer, the reference is still released.
func (r *Ref[T]) Release(ctx context.Context) (bool, error) {
	return r.ref.Release(ctx, true)
}

// Close releases the reference without waiting for the server, and closes the tensors of the value. A second Close
// returns nil.
func (r *Ref[T]) Close() error {
	r.close.Do(func() {
		r.net.disarm()
		_, _ = r.ref.Release(context.Background(), false)
		codec.CloseValue(r.value)
	})
	return nil
}
