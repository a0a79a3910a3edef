package endpoint

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
)

// request sends a request and decodes the answer into out, if that is not nil. Where the connection is gone it dials
// first, within ctx.
func (c *connector) request(ctx context.Context, ask link.Request, out any) error {
	return c.onLink(ctx, func(l *link.Link) error { return requestOn(ctx, l, ask, out) })
}

// onLink makes a request on the connection, and on the next one where the connection was over before anything was sent.
func (c *connector) onLink(ctx context.Context, request func(*link.Link) error) error {
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return err
		}
		if err := request(l); !link.IsUnasked(err) {
			return err
		}
	}
}

// requestNow is request that fails at once where nobody serves.
func (c *connector) requestNow(ctx context.Context, ask link.Request, out any) error {
	for {
		l, err := c.connectNow(ctx)
		if err != nil {
			return err
		}
		if err := requestOn(ctx, l, ask, out); !link.IsUnasked(err) {
			return err
		}
	}
}

// requestOn is request on a certain connection.
func requestOn(ctx context.Context, l *link.Link, ask link.Request, out any) error {
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
