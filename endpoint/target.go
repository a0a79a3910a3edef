package endpoint

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/calls"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/reference"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
)

// target is what a caller calls: an owner, over the connections of a client.
type target struct {
	conn        *connector.Connector
	refs        *reference.Table
	invoker     *calls.Invoker
	intercept   Invoke        // the interceptors; nil for none
	infoTimeout time.Duration // for ServerInfo
}

// get fetches a value, a call's through the client's interceptors.
func (t *target) get(ctx context.Context, f calls.Call, out any) error {
	if t.intercept == nil || f.Task != "" {
		return t.getNow(ctx, f, out)
	}
	return t.intercepted(ctx, KindCall, f.Name, f.In, func(ctx context.Context, with Metadata) error {
		return t.getNow(ctx, calls.Call{Name: f.Name, In: f.In, Metadata: with}, out)
	}, func() { dropValue(out) })
}

// getNow is get without interceptors, and names what it fetches in errors.
func (t *target) getNow(ctx context.Context, f calls.Call, out any) error {
	if err := waiting(ctx, func() error { return t.invoker.Fetch(ctx, f, out) }); err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	return nil
}

// keep is get that keeps the reference.
func (t *target) keep(ctx context.Context, f calls.Call, out any) (*reference.Reference, error) {
	if t.intercept == nil || f.Task != "" {
		return t.keepNow(ctx, f, out)
	}
	var ref *reference.Reference
	err := t.intercepted(ctx, KindCall, f.Name, f.In, func(ctx context.Context, with Metadata) (err error) {
		ref, err = t.keepNow(ctx, calls.Call{Name: f.Name, In: f.In, Metadata: with}, out)
		return err
	}, func() {
		dropValue(out)
		if ref != nil {
			_, _ = ref.Release(context.WithoutCancel(ctx), false)
		}
	})
	if err != nil {
		return nil, err
	}
	return ref, nil
}

// keepNow is getNow that keeps the reference.
func (t *target) keepNow(ctx context.Context, f calls.Call, out any) (*reference.Reference, error) {
	var ref *reference.Reference
	err := waiting(ctx, func() (err error) {
		ref, err = t.invoker.Hold(ctx, f, out)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f, err)
	}
	return ref, nil
}

// streaming opens a stream, through the client's interceptors, and closes it when take, which reads it, returns.
func (t *target) streaming(ctx context.Context, name string, in any, take func(context.Context, *calls.Stream) error) error {
	if t.intercept == nil {
		return t.streamNow(ctx, calls.Call{Name: name, In: in}, take)
	}
	return t.intercepted(ctx, KindStream, name, in, func(ctx context.Context, with Metadata) error {
		return t.streamNow(ctx, calls.Call{Name: name, In: in, Metadata: with}, take)
	}, func() {})
}

func (t *target) streamNow(ctx context.Context, f calls.Call, take func(context.Context, *calls.Stream) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := t.invoker.Stream(ctx, f)
	if err == nil {
		defer s.Close(ctx)
		err = take(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", status.Shown(f.Name), err)
	}
	return nil
}

// intercepted has a call go through the client's interceptors. do makes the call with the metadata that they have set,
// undo gives back what came of it.
func (t *target) intercepted(ctx context.Context, kind InvocationKind, name string, in any, do func(context.Context, Metadata) error, undo func()) error {
	call := &Invocation{
		Endpoint: name, Kind: kind, Client: true, Peer: t.owner(), Metadata: Metadata{}, argument: func() (any, error) { return in, nil },
	}
	return call.through(ctx, t.intercept, func(ctx context.Context) error {
		if err := call.Metadata.Check(); err != nil {
			return fmt.Errorf("%s %s: %w: %w", kind, status.Shown(name), status.ErrInvalid, err)
		}
		return do(ctx, call.Metadata)
	}, undo)
}

// owner is the process that the client is connected to.
func (t *target) owner() Peer {
	l := t.conn.Current()
	if l == nil {
		return Peer{}
	}
	peer := l.Peer()
	return Peer{PID: peer.PID, UID: peer.UID, GID: peer.GID, Label: l.Server.Label, Server: l.Server.Server}
}

// dropValue closes what was decoded into out, a pointer or nil, and leaves nothing there.
func dropValue(out any) {
	if out == nil {
		return
	}
	codec.CloseValue(out)
	reflect.ValueOf(out).Elem().SetZero()
}

// waiting calls wait. In a task it gives the task's worker to others meanwhile: what is waited for may be another task.
func waiting(ctx context.Context, wait func() error) error {
	if _, ok := task.ID(ctx); ok {
		return task.Blocking(ctx, wait)
	}
	return wait()
}
