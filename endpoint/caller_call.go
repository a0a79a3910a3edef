package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Call implements [Client.Call].
func (c *caller) Call(ctx context.Context, name string, in, out any) error {
	_, err := c.fetch(ctx, client.Call{Name: name, In: in}, out)
	return err
}

// keep implements Caller.
func (c *caller) keep(ctx context.Context, call client.Call, out any) (*client.Reference, error) {
	call.Keep = true
	return c.fetch(ctx, call, out)
}

// fetch obtains a value and, if call.Keep is set, its reference. A call runs through the client's interceptors.
func (c *caller) fetch(ctx context.Context, call client.Call, out any) (*client.Reference, error) {
	if c.intercept == nil || call.Task != nil {
		return c.fetchNow(ctx, call, out)
	}
	var ref *client.Reference
	err := c.intercepted(ctx, KindCall, call, func(ctx context.Context, call client.Call) (err error) {
		ref, err = c.fetchNow(ctx, call, out)
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

// fetchNow is fetch without interceptors. Its errors name the call.
func (c *caller) fetchNow(ctx context.Context, call client.Call, out any) (ref *client.Reference, err error) {
	if _, inTask := task.ID(ctx); inTask {
		ref, err = c.fetchInTask(ctx, call, out)
	} else {
		ref, err = c.conn.Fetch(ctx, call, out)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	return ref, nil
}

// fetchInTask releases the task's worker meanwhile. It is a separate function because it allocates.
func (c *caller) fetchInTask(ctx context.Context, call client.Call, out any) (ref *client.Reference, err error) {
	err = waiting(ctx, func() (err error) {
		ref, err = c.conn.Fetch(ctx, call, out)
		return err
	})
	return ref, err
}

// intercepted runs a call through the client's interceptors. do makes the call with the metadata that they set; undo
// releases its result.
func (c *caller) intercepted(ctx context.Context, kind InvocationKind, call client.Call, do func(context.Context, client.Call) error, undo func()) error {
	in := &Invocation{
		Endpoint: call.Name, Kind: kind, Client: true, Peer: c.owner(), Metadata: Metadata{}, argument: func() (any, error) { return call.In, nil },
	}
	return in.through(ctx, c.intercept, func(ctx context.Context) error {
		if err := in.Metadata.Check(); err != nil {
			return fmt.Errorf("%s %s: %w: %w", kind, status.Shown(call.Name), status.ErrInvalid, err)
		}
		call.Metadata = in.Metadata
		return do(ctx, call)
	}, undo)
}

// owner returns the connected process.
func (c *caller) owner() Peer {
	l := c.conn.Current()
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

// Stream implements [Client.Stream].
func (c *caller) Stream(ctx context.Context, name string, in any) iter.Seq2[func(out any) error, error] {
	return func(yield func(func(any) error, error) bool) {
		left := false
		stream := func(ctx context.Context, call client.Call) error {
			if left { // an interceptor made the call again
				return nil
			}
			if err := c.stream(ctx, call, func(decode func(any) error) bool {
				left = !yield(decode, nil)
				return !left
			}); err != nil {
				return fmt.Errorf("stream %s: %w", status.Shown(name), err)
			}
			return nil
		}
		call := client.Call{Name: name, In: in}
		var err error
		if c.intercept == nil {
			err = stream(ctx, call)
		} else {
			err = c.intercepted(ctx, KindStream, call, stream, func() {})
		}
		if err != nil && !left {
			yield(nil, err)
		}
	}
}

// stream makes the call and passes each result to yield until it returns false. It makes the call again if the owner
// refused it after its goodbye, which it does not do after the first result.
func (c *caller) stream(ctx context.Context, call client.Call, yield func(decode func(any) error) bool) (err error) {
	began := false
	for range streamAttempts {
		err = c.streamOnce(ctx, call, func(decode func(any) error) bool {
			began = true
			return yield(decode)
		})
		if began || !client.NotSent(err) {
			break
		}
	}
	return err
}

// streamAttempts limits the calls of a stream that owners refuse because they are leaving.
const streamAttempts = 4

func (c *caller) streamOnce(ctx context.Context, call client.Call, yield func(decode func(any) error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.conn.Stream(ctx, call)
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	item := streamItem{of: s, name: call.Name}
	defer item.drop()
	decode := item.decode
	for more := true; more; item.drop() {
		err := waiting(ctx, func() (err error) {
			item.frame, err = s.Next(ctx)
			return err
		})
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		item.there = true
		more = yield(decode)
	}
	return item.failed // interceptors receive the error
}

// streamItem is a result that is ready to be decoded.
type streamItem struct {
	of     *client.Stream
	name   string
	frame  wire.Frame
	there  bool
	failed error // error of the first failed decode
}

var errItemTaken = errors.New("a result of a stream is decoded once, before the next")

// decode decodes the item into out.
func (i *streamItem) decode(out any) error {
	if !i.there {
		return fmt.Errorf("stream %s: %w: %w", status.Shown(i.name), status.ErrInvalid, errItemTaken)
	}
	i.there = false
	if err := i.of.Take(i.frame, out); err != nil {
		i.failed = err
		return fmt.Errorf("stream %s: %w", status.Shown(i.name), err)
	}
	return nil
}

// drop releases an item that was not decoded.
func (i *streamItem) drop() {
	if i.there {
		i.there = false
		_ = i.of.Take(i.frame, nil) // best effort: the item is discarded
	}
}
