package connector

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
)

// Request sends a request and decodes the answer into out, if that is not nil. Where the connection is gone it dials
// first, within ctx.
func (c *Connector) Request(ctx context.Context, ask link.Request, out any) error {
	return c.OnLink(ctx, func(l *link.Link) error { return RequestOn(ctx, l, ask, out) })
}

// OnLink makes a request on the connection, and on the next one where the connection was over before anything was sent.
func (c *Connector) OnLink(ctx context.Context, request func(*link.Link) error) error {
	for {
		l, err := c.Connected(ctx)
		if err != nil {
			return err
		}
		if err := request(l); !link.IsUnasked(err) {
			return err
		}
	}
}

// RequestNow is Request that fails at once where nobody serves.
func (c *Connector) RequestNow(ctx context.Context, ask link.Request, out any) error {
	for {
		l, err := c.ConnectNow(ctx)
		if err != nil {
			return err
		}
		if err := RequestOn(ctx, l, ask, out); !link.IsUnasked(err) {
			return err
		}
	}
}

// RequestOn is Request on a certain connection.
func RequestOn(ctx context.Context, l *link.Link, ask link.Request, out any) error {
	_, frame, err := l.RoundTrip(ctx, ask)
	if err != nil {
		return err
	}
	defer frame.Files.Close()
	if out == nil {
		return nil
	}
	return link.DecodeAnswer(frame, out)
}
