package endpoint

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// RegisterStream adds a function whose results come one by one under a name. Items are sent as they are yielded, and no
// faster than the caller takes them: the function waits in yield. When the caller leaves, ctx ends and yield returns
// false. An error that is yielded ends the stream. Ownership and errors are as for [Register].
func RegisterStream[In, Out any](r *Registry, name string, fn func(ctx context.Context, in In) iter.Seq2[Out, error], opts ...Option) error {
	d := &engine.Definition{Name: name, In: reflect.TypeFor[In](), Out: reflect.TypeFor[Out]()}
	d.Decode = func(raw message.RawMessage, storages []*tensor.Storage) (any, []interface{ Close() error }, error) {
		in := new(In)
		made, err := codec.DecodePayload(raw, storages, in, true)
		return in, made, err
	}
	d.Stream = func(ctx context.Context, in any, send func(any) error) error {
		for out, err := range fn(ctx, *in.(*In)) {
			if err != nil {
				codec.CloseValue(out)
				return err
			}
			if err := send(out); err != nil {
				return err
			}
		}
		return nil
	}
	if fn != nil {
		d.Invoke = engine.InvokeStream(d)
	}
	return r.add(d, opts)
}

// credit is how many items a stream may still send.
type credit struct {
	mu    sync.Mutex
	items uint64
	more  chan struct{} // has room for one
}

// add allows n items more, up to what a client can mean in earnest.
func (c *credit) add(n uint64) {
	c.mu.Lock()
	c.items += min(n, 1<<32)
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// take waits until an item may be sent.
func (c *credit) take(ctx context.Context) error {
	for {
		c.mu.Lock()
		ok := c.items > 0
		if ok {
			c.items--
		}
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func doStream(ctx context.Context, r request) (reply, error) {
	return r.counted(ctx, KindStream, request.streamEndpoint)
}

// streamEndpoint runs an endpoint whose results come one by one.
func (r request) streamEndpoint(ctx context.Context, d *engine.Definition, a *engine.Arguments) (reply, error) {
	if d.Stream == nil {
		a.Drop()
		return reply{}, fmt.Errorf("%w: endpoint %q returns one result, call it", status.ErrInvalid, d.Name)
	}
	flow := &credit{items: message.StreamWindow, more: make(chan struct{}, 1)}
	r.session.streams.put(r.id, flow)
	defer r.session.streams.drop(r.id)
	send := func(item any) error { return r.sendItem(ctx, d, flow, item) }
	a.Claim()
	res, err := r.session.server.engine.Run(engine.WithSend(ctx, send), d, a)
	if err != nil {
		return reply{}, err
	}
	res.Release() // a stream ends with nothing
	return reply{body: message.Returned{}}, nil
}

// sendItem sends one result of a stream, of which it takes the tensors, when the caller has room for it.
func (r request) sendItem(ctx context.Context, d *engine.Definition, flow *credit, item any) error {
	res, err := r.session.server.engine.Encode(item)
	if err != nil {
		return fmt.Errorf("item: %w", err)
	}
	defer res.Release()
	held := heldAnswer{of: r.session.answers}
	defer held.release()
	if err := held.grow(2 * len(res.Payload.Value)); err != nil { // it is copied into the frame
		return err
	}
	memory := &r.session.server.engine.Memory
	if err := memory.Take(r.session.id, res); err != nil {
		return err
	}
	defer memory.Give(r.session.id, res)
	if err := flow.take(ctx); err != nil {
		return err
	}
	out, files, err := r.share(res, false)
	if err != nil {
		return err
	}
	body, err := message.MarshalPayload(message.StreamItem{Value: out.Value, Handles: out.Handles})
	if err != nil {
		return err
	}
	return r.session.send(r.session.conn.Send, wire.KindEvent, r.id, body, files, res.Payload.Storages)
}

// streams are the streams of a session that run, by the id of their request.
type streams struct {
	mu  sync.Mutex
	all map[uint64]*credit
}

func (s *streams) put(id uint64, c *credit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[uint64]*credit{}
	}
	s.all[id] = c
}

func (s *streams) drop(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// doStreamMore lets a stream go on. One that has ended meanwhile needs no more.
func doStreamMore(_ context.Context, r request) (reply, error) {
	var in message.StreamMore
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	streams := &r.session.streams
	streams.mu.Lock()
	flow := streams.all[in.Stream]
	streams.mu.Unlock()
	if flow != nil {
		flow.add(in.Items)
	}
	return reply{body: message.StreamMoreDone{}}, nil
}
