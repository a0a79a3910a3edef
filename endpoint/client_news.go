package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// watchObjects asks the owner, once a connection, to tell of objects that it destroys. Requests that are sent
// afterwards are heard of.
func (c *Client) watchObjects(ctx context.Context, l *link.Link) error {
	return l.News.Once(ctx, func() error {
		ask := link.Request{Op: message.OpObjectWatch, Body: message.WatchObjects{}, Item: func(frame wire.Frame) error { return c.objectGone(l, frame) }}
		_, err := l.Start(ctx, ask, func(frame wire.Frame, _ error) { frame.Files.Close() })
		return err
	})
}

// objectGone is called by whoever reads the connection with an object that was destroyed. It takes the frame.
func (c *Client) objectGone(l *link.Link, frame wire.Frame) error {
	defer frame.Files.Close()
	var gone message.ObjectGone
	if err := message.Unmarshal(frame.Body, &gone); err != nil {
		return fmt.Errorf("%w: event: %w", status.ErrProtocol, err)
	}
	if err := l.News.Note(gone.ID); err != nil { // before looking for references: those that are not found look here
		return err
	}
	for _, r := range c.referencesTo(gone.ID) {
		if r.heldOn() == l {
			r.stale(status.StaleObjectMissing, gone.Reason)
			c.lose(r, status.StaleObjectMissing)
		}
	}
	return nil
}
