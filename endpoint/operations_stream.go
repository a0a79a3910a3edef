package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func (o *callOperations) stream(ctx context.Context, r request) (reply, error) {
	return o.counted(ctx, r, KindStream, (*callOperations).streamEndpoint)
}

// streamEndpoint runs an endpoint that returns a stream of results.
func (o *callOperations) streamEndpoint(ctx context.Context, r request, d *engine.Definition, a *engine.Arguments) (reply, error) {
	if d.Stream == nil {
		a.Drop()
		return reply{}, fmt.Errorf("%w: endpoint %q returns one result: use Call", status.ErrInvalid, d.Name)
	}
	flow := r.Session.Streams.Begin(r.ID)
	defer r.Session.Streams.End(r.ID)
	send := func(ctx context.Context, item any) error { return o.sendItem(ctx, r, flow, item) }
	a.Claim()
	res, err := o.engine.Run(engine.WithSend(ctx, send), d, a)
	if err != nil {
		return reply{}, err
	}
	res.Release() // a stream has no final result
	return reply{Body: message.Returned{}}, nil
}

// sendItem sends one result of a stream when the reader has credit for it, and takes its tensors. It waits until ctx
// ends.
func (o *callOperations) sendItem(ctx context.Context, r request, flow *session.Credit, item any) error {
	res, err := o.engine.Encode(item)
	if err != nil {
		return fmt.Errorf("item: %w", err)
	}
	defer res.Release()
	held := r.Session.HoldItem()
	defer held.Release()
	if err := held.Grow(2 * len(res.Payload.Value)); err != nil { // the value is copied into the frame
		return err
	}
	memory := &o.engine.Memory
	if err := memory.Add(r.Session.ID, res); err != nil {
		return err
	}
	defer memory.Remove(r.Session.ID, res)
	if err := flow.Take(ctx); err != nil {
		return err
	}
	out, files, err := share(r.Session, res, false)
	if err != nil {
		return err
	}
	body, err := message.MarshalPayload(message.StreamItem{Value: out.Value, Handles: out.Handles})
	if err != nil {
		return err
	}
	return r.Session.SendItem(r.ID, body, files, res.Payload.Storages)
}

// streamMore adds credit to a stream.
func streamMore(_ context.Context, r request) (reply, error) {
	var in message.StreamMore
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	r.Session.Streams.More(in.Stream, in.Items)
	return reply{Body: message.StreamMoreDone{}}, nil
}
