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
	objects Objects           // if the result is a managed object
	ref     *client.Reference // nil if the result is not a managed object
	net     *leakGuard
	value   T
	close   sync.Once
}

// CallManaged is [Call] for an endpoint with managed results. It keeps the reference to the result's object. The caller
// closes the Ref. If the endpoint is not managed or returned nothing, or if c is an implementation of the program, such
// as a test's, there is no object: the Ref has no id and never becomes stale.
func CallManaged[T any](ctx context.Context, c Calls, name string, in any) (*Ref[T], error) {
	r := new(Ref[T])
	var err error
	if h, holds := c.(holder); holds {
		r.objects = h
		r.ref, err = h.keep(ctx, client.Call{Name: name, In: in}, &r.value)
	} else {
		err = c.Call(ctx, name, in, &r.value)
	}
	if err != nil {
		return nil, err
	}
	r.guard("endpoint", name)
	return r, nil
}

// ResultManaged is [Tasks].Result with a typed value that keeps the reference to the result's object. Each fetch has a
// separate reference. The caller closes the Ref.
func ResultManaged[T any](ctx context.Context, c Tasks, taskID string) (*Ref[T], error) {
	r := new(Ref[T])
	var err error
	if h, holds := c.(holder); holds {
		r.objects = h
		r.ref, err = h.keep(ctx, client.Call{Task: taskID}, &r.value)
	} else {
		err = c.Result(ctx, taskID, &r.value)
	}
	if err != nil {
		return nil, err
	}
	r.guard("task", taskID)
	return r, nil
}

// guard releases the reference when the Ref becomes unreachable, and reports where the Ref was created.
func (r *Ref[T]) guard(what, name string) {
	if ref := r.ref; ref != nil {
		r.net = newLeakGuard(r, "reference to an object", codec.StoragesIn(r.value), func(leak *driver.Leak) { ref.Collected(leak, what, name) })
	}
}

// Value returns the result. It is borrowed: its tensors are valid until Close, and the caller must not close them.
func (r *Ref[T]) Value() T { return r.value }

// ID returns the id of the object at its server, or "" if there is no object.
func (r *Ref[T]) ID() string {
	if r.ref == nil {
		return ""
	}
	return r.ref.ID
}

// ServerID returns the id of the object's server, or "" if there is no object.
func (r *Ref[T]) ServerID() string {
	if r.ref == nil {
		return ""
	}
	return r.ref.Server
}

// Done returns a channel that is closed when Err becomes non-nil. It is nil, which blocks forever, if there is no
// object.
func (r *Ref[T]) Done() <-chan struct{} {
	if r.ref == nil {
		return nil
	}
	return r.ref.Done()
}

// Err returns nil while the reference is valid as far as was reported to this process. It returns a [*StaleError] if
// the object is gone, and [ErrClosed] if the reference was released or its client closed.
func (r *Ref[T]) Err() error {
	if r.ref == nil {
		return nil
	}
	return r.ref.Err()
}

// Info requests a description of the object from the server. It returns a [*StaleError] if the object is gone, and
// [ErrInvalid] if there is no object.
func (r *Ref[T]) Info(ctx context.Context) (ObjectInfo, error) {
	if err := r.Err(); err != nil {
		return ObjectInfo{}, err
	}
	if r.ref == nil {
		return ObjectInfo{}, fmt.Errorf("%w: the result is not a managed object", status.ErrInvalid)
	}
	return r.objects.EnsureLive(ctx, r.ID(), r.ServerID())
}

// Release releases the reference and keeps the value. It returns true if the server released a reference, and false on
// a second call or if the object is gone. If ctx ends before the answer, the reference is still released.
func (r *Ref[T]) Release(ctx context.Context) (bool, error) {
	if r.ref == nil {
		return false, nil
	}
	return r.ref.Release(ctx, true)
}

// Close releases the reference without waiting for the server, and closes the tensors of the value. A second Close
// returns nil.
func (r *Ref[T]) Close() error {
	r.close.Do(func() {
		r.net.disarm()
		if r.ref != nil {
			_, _ = r.ref.Release(context.Background(), false)
		}
		codec.CloseValue(r.value)
	})
	return nil
}
