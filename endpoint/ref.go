package endpoint

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/calls"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/reference"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Ref is the managed result of a call, typed: the value, and one reference to the object at its server, which keeps the
// object as long as any session has a reference. (It is called Ref and not Handle because a [Handle] is an acquired
// version of a published model.)
//
// The reference belongs to the connection. When that breaks, the client takes the reference again from the same server;
// where that does not have the object any more, or another server answers, the Ref becomes stale, and whoever waits on
// Done hears of it without asking. The value's memory is this process's own mapping: it stays valid until Close
// whatever becomes of the object.
//
// A Ref that is not closed keeps the object at its server. When the garbage collector finds one of which nothing is
// used any more, neither itself nor a tensor of its value, the reference goes back with a warning. Where a slice or an
// address of the value's memory was handed out ([tensor.Data]), which the collector does not see, the reference is kept
// as long as the client lives and counts as a leak ([driver.Leaks]).
//
// A Ref is an io.Closer. Its methods are safe for concurrent use.
type Ref[T any] struct {
	objects Objects              // where the result is a managed object
	ref     *reference.Reference // nil where the result is no managed object
	net     *leakGuard
	value   T
	close   sync.Once
}

// CallManaged is [Call] of an endpoint with managed results, that also keeps the reference that comes with the result.
// The caller closes the Ref. Where the endpoint is not managed, or returned nothing, there is no object: the Ref has no
// id and is never stale. So it is where c is of the program's own type, such as a test's.
func CallManaged[T any](ctx context.Context, c Calls, name string, in any) (*Ref[T], error) {
	r := new(Ref[T])
	var err error
	if h, holds := c.(holder); holds {
		r.objects = h
		r.ref, err = h.keep(ctx, calls.Call{Name: name, In: in}, &r.value)
	} else {
		err = c.Call(ctx, name, in, &r.value)
	}
	if err != nil {
		return nil, err
	}
	r.guard("endpoint", name)
	return r, nil
}

// ResultManaged is [Tasks].Result with a typed value, that also keeps the reference that comes with it: each fetch has
// one of its own. The caller closes the Ref.
func ResultManaged[T any](ctx context.Context, c Tasks, taskID string) (*Ref[T], error) {
	r := new(Ref[T])
	var err error
	if h, holds := c.(holder); holds {
		r.objects = h
		r.ref, err = h.keep(ctx, calls.Call{Task: taskID}, &r.value)
	} else {
		err = c.Result(ctx, taskID, &r.value)
	}
	if err != nil {
		return nil, err
	}
	r.guard("task", taskID)
	return r, nil
}

// guard sees to it that the reference goes back when the Ref is forgotten, and tells where it came from.
func (r *Ref[T]) guard(what, name string) {
	if ref := r.ref; ref != nil {
		r.net = newLeakGuard(r, "reference to an object", codec.StoragesIn(r.value), func(leak *driver.Leak) { ref.Forgotten(leak, what, name) })
	}
}

// Value is the result. It is borrowed: its tensors are valid until Close and not to be closed by the caller.
func (r *Ref[T]) Value() T { return r.value }

// ID names the object within its server's life; empty where there is none.
func (r *Ref[T]) ID() string {
	if r.ref == nil {
		return ""
	}
	return r.ref.ID
}

// ServerID names the server that the object came from; empty where there is none.
func (r *Ref[T]) ServerID() string {
	if r.ref == nil {
		return ""
	}
	return r.ref.Server
}

// Done returns a channel that is closed when Err is not nil any more. It is nil, which blocks for ever, where there is
// no object.
func (r *Ref[T]) Done() <-chan struct{} {
	if r.ref == nil {
		return nil
	}
	return r.ref.Done()
}

// Err is nil while the reference is good, as far as this process has heard; a [*StaleError] when the object is gone,
// and [ErrClosed] when the reference was given back or its client closed.
func (r *Ref[T]) Err() error {
	if r.ref == nil {
		return nil
	}
	return r.ref.Err()
}

// Info asks the server about the object. It returns a [*StaleError] if the object is gone, and [ErrInvalid] for a
// reference without an object.
func (r *Ref[T]) Info(ctx context.Context) (ObjectInfo, error) {
	if err := r.Err(); err != nil {
		return ObjectInfo{}, err
	}
	if r.ref == nil {
		return ObjectInfo{}, fmt.Errorf("%w: the result is no managed object", status.ErrInvalid)
	}
	return r.objects.EnsureLive(ctx, r.ID(), r.ServerID())
}

// Release gives the reference back and leaves the value as it is. It is true if the server took a reference back: not
// the second time, and not when the object is gone. When ctx ends before the answer the reference goes back all the
// same.
func (r *Ref[T]) Release(ctx context.Context) (bool, error) {
	if r.ref == nil {
		return false, nil
	}
	return r.ref.Release(ctx, true)
}

// Close gives the reference back, without waiting for the server, and closes the tensors of the value. A second Close
// is nil.
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
