package endpoint

import (
	"context"
	"fmt"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// intercepted has a call go through the client's interceptors. do makes the call with the metadata that they have set,
// undo gives back what came of it.
func (c *Client) intercepted(ctx context.Context, kind InvocationKind, name string, in any, do func(context.Context, Metadata) error, undo func()) error {
	call := &Invocation{
		Endpoint: name, Kind: kind, Client: true, Peer: c.owner(), Metadata: Metadata{}, argument: func() (any, error) { return in, nil },
	}
	return call.through(ctx, c.intercept, func(ctx context.Context) error {
		if err := call.Metadata.Check(); err != nil {
			return fmt.Errorf("%s %s: %w: %w", kind, status.Shown(name), status.ErrInvalid, err)
		}
		return do(ctx, call.Metadata)
	}, undo)
}

// owner is who the client is connected to.
func (c *Client) owner() Peer {
	c.connector.mu.Lock()
	l := c.connector.link
	c.connector.mu.Unlock()
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
