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

// target is the owner that a caller calls, through the connections of a client.
type target struct {
	conn        *connector.Connector
	refs        *reference.Table
	invoker     *calls.Invoker
	intercept   Invoke        // interceptors; nil for none
	infoTimeout time.Duration // limits ServerInfo
}

// get fetches a value. A call runs through the client's interceptors.
func (t *target) get(ctx context.Context, f calls.Call, out any) error {
	if t.intercept == nil || f.Task != "" {
		return t.getNow(ctx, f, out)
	}
	return t.intercepted(ctx, KindCall, f.Name, f.In, func(ctx context.Context, with Metadata) error {
		return t.getNow(ctx, calls.Call{Name: f.Name, In: f.In, Metadata: with}, out)
	}, func() { dropValue(out) })
}

// getNow is get without interceptors. Its errors name the call.
func (t *target) getNow(ctx context.Context, f calls.Call, out any) error {
	if err := waiting(ctx, func() error { return t.invoker.Fetch(ctx, f, out) }); err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	return nil
}

// keep is get that keeps the result's reference.
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

// keepNow is getNow that keeps the result's reference.
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

// streaming opens a stream through the client's interceptors, calls take to read it, and closes it.
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

// intercepted runs a call through the client's interceptors. do makes the call with the metadata that they set; undo
// releases its result.
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

// owner returns the connected process.
func (t *target) owner() Peer {
	l := t.conn.Current()
	if l == nil {
		return Peer{}
	}
	peer := l.Peer()
	return Peer{PID: peer.PID, UID: peer.UID, GID: peer.GID, Label: l.Server.Label, Server: l.Server.Server}
}

// dropValue closes what was decoded into out, a pointer or nil, and zeroes it.
func dropValue(out any) {
	if out == nil {
		return
	}
	codec.CloseValue(out)
	reflect.ValueOf(out).Elem().SetZero()
}

// waiting calls wait. In a task, it releases the task's worker meanwhile, because wait may depend on another task.
func waiting(ctx context.Context, wait func() error) error {
	if _, ok := task.ID(ctx); ok {
		return task.Blocking(ctx, wait)
	}
	return wait()
}
