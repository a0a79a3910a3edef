package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ObjectInfo implements [Client.ObjectInfo].
func (c *caller) ObjectInfo(ctx context.Context, objectID string) (ObjectInfo, error) {
	var got message.ObjectInfo
	ask := client.Request{Op: message.OpObjectInfo, Body: message.Object{ID: objectID}}
	if err := c.conn.Request(ctx, ask, &got); err != nil {
		return ObjectInfo{}, fmt.Errorf("object info: %w", err)
	}
	return decodeObject(got), nil
}

// Objects implements [Client.Objects].
func (c *caller) Objects(ctx context.Context, endpoints ...string) ([]ObjectInfo, error) {
	list := []ObjectInfo{}
	for ask := (message.Objects{Endpoints: endpoints}); ; {
		var got message.ObjectsListed
		if err := c.conn.Request(ctx, client.Request{Op: message.OpObjects, Body: ask}, &got); err != nil {
			return nil, fmt.Errorf("objects: %w", err)
		}
		for _, info := range got.Objects {
			list = append(list, decodeObject(info))
		}
		if got.Next == 0 {
			return list, nil
		}
		if got.Next <= ask.After || len(got.Objects) == 0 || len(list) > message.MaxElements {
			return nil, fmt.Errorf("objects: %w: invalid page after %d objects", status.ErrProtocol, len(list))
		}
		ask.After = got.Next
	}
}

// Destroy implements [Client.Destroy].
func (c *caller) Destroy(ctx context.Context, objectID string) (ObjectInfo, error) {
	var got message.ObjectInfo
	ask := client.Request{Op: message.OpObjectDestroy, Body: message.Object{ID: objectID}}
	if err := c.conn.Request(ctx, ask, &got); err != nil {
		return ObjectInfo{}, fmt.Errorf("destroy object %s: %w", message.CutText(objectID, status.MaxShown), err)
	}
	return decodeObject(got), nil
}

// EnsureLive implements [Client.EnsureLive].
func (c *caller) EnsureLive(ctx context.Context, objectID, serverID string) (ObjectInfo, error) {
	info, err := c.ObjectInfo(ctx, objectID)
	answered := info.ServerID
	var stale *StaleError
	if errors.As(err, &stale) {
		answered = stale.ServerID
	} else if err != nil {
		return ObjectInfo{}, err
	}
	if serverID != "" && answered != serverID {
		return ObjectInfo{}, &StaleError{ObjectID: objectID, ServerID: serverID, Reason: StaleServerMismatch}
	}
	return info, err
}
