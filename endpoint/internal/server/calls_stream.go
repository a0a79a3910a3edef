package server

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func (c *call) stream(ctx context.Context) (session.Reply, error) {
	return c.counted(ctx, false, (*call).streamEndpoint)
}

// streamEndpoint runs an endpoint that returns a stream of results.
func (c *call) streamEndpoint(ctx context.Context, a *engine.Arguments) (session.Reply, error) {
	d := c.callee
	if d.Stream == nil {
		a.Drop()
		return nil, fmt.Errorf("%w: endpoint %q returns one result: use Call", status.ErrInvalid, d.Name)
	}
	s := itemSender{engine: c.engine, client: c.client, id: c.request.ID, credit: c.client.streams.begin(c.request.ID)}
	defer s.client.streams.end(s.id)
	a.Claim()
	res, err := c.engine.Run(engine.WithSend(ctx, s.send), d, a)
	if err != nil {
		return nil, err
	}
	res.Release() // a stream has no final result
	return &answer{body: message.Returned{}}, nil
}

// itemSender sends the items of one stream. A function may keep it after the request ends.
type itemSender struct {
	engine *engine.Engine
	client *client
	id     uint64 // of the request
	credit *credit
}

// send sends one item when the reader has credit for it, and takes its tensors. It waits until ctx ends.
func (s itemSender) send(ctx context.Context, item any) error {
	res, err := s.engine.Encode(item)
	if err != nil {
		return fmt.Errorf("item: %w", err)
	}
	defer res.Release()
	ses := s.client.session
	held := ses.Hold()
	defer held.Release()
	if err := held.Grow(2 * len(res.Payload.Value)); err != nil { // the value is copied into the frame
		return err
	}
	if err := s.engine.Memory.Add(ses.ID, res); err != nil {
		return err
	}
	defer s.engine.Memory.Remove(ses.ID, res)
	if err := s.credit.take(ctx); err != nil {
		return err
	}
	out, err := s.share(res)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := held.Grow(2 * transfer.InlineBytes(out.Handles)); err != nil {
		return err
	}
	body, err := message.MarshalPayload(message.StreamItem{Value: res.Payload.Value, Handles: out.Handles})
	if err != nil {
		return err
	}
	return ses.SendItem(s.id, body, out.Files, res.Payload.Storages)
}

// share shares the memory of an item. The caller closes the export.
func (s itemSender) share(res *engine.Result) (*transfer.Export, error) {
	p := &res.Payload
	var out *transfer.Export
	var err error
	if s.client.session.InProcess() {
		out, err = transfer.ExportInProcess(p.Storages)
	} else {
		out, err = transfer.ExportOrInline(p.Value, p.Storages, s.client.inline, true)
	}
	for i := 0; err == nil && i < len(out.Handles); i++ {
		if err = engine.CheckLasting(out.Handles[i].Kind, false); err != nil {
			out.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("share the result: %w", err)
	}
	return out, nil
}

// streamMore adds credit to a stream.
func streamMore(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.StreamMore
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	clientOf(r.Session).streams.allow(in.Stream, in.Items)
	return &answer{body: message.StreamMoreDone{}}, nil
}
