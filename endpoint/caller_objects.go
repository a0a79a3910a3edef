package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Release gives one reference back for each id, as often as the id is given: of each object the oldest that this session
// has. The rows are in the order of the ids and report what became of each: a reference that was not taken back, because
// the object is gone or this session has no reference to it, is no error of the call, its row has the reason. A [Ref]
// gives its own reference back; this is for ids that were kept apart from their values. A Ref whose reference went this
// way is [ErrClosed], and its Close only closes the value.
func (c *caller) Release(ctx context.Context, objectIDs ...string) ([]Released, error) {
	rows, err := c.release(ctx, objectIDs)
	if err != nil {
		return nil, fmt.Errorf("release %d objects: %w", len(objectIDs), err)
	}
	out := make([]Released, len(rows))
	for i, row := range rows {
		out[i] = Released{ObjectID: row.ID, Released: row.Released, Destroyed: row.Destroyed, Refs: row.Refs}
		if row.Error != nil {
			out[i].Err = status.DecodeError(row.Error)
		}
	}
	return out, nil
}

func (c *caller) release(ctx context.Context, ids []string) ([]message.ObjectReleased, error) {
	if slices.Contains(ids, "") {
		return nil, fmt.Errorf("%w: an object id is empty", status.ErrInvalid)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	all := make([]message.ObjectReleased, 0, len(ids))
	for part := range slices.Chunk(ids, message.MaxReleases) {
		var got message.ObjectsReleased
		ask := link.Request{Op: message.OpObjectRelease, Body: message.ReleaseObjects{IDs: part}}
		if err := c.to.conn.Request(ctx, ask, &got); err != nil {
			return nil, err
		}
		if len(got.Objects) != len(part) {
			return nil, fmt.Errorf("%w: %d answers for %d objects", status.ErrProtocol, len(got.Objects), len(part))
		}
		c.to.refs.Given(got.Objects)
		all = append(all, got.Objects...)
	}
	return all, nil
}

// ObjectInfo describes a managed object. One that the server does not have is a [*StaleError].
func (c *caller) ObjectInfo(ctx context.Context, objectID string) (ObjectInfo, error) {
	var got message.ObjectInfo
	ask := link.Request{Op: message.OpObjectInfo, Body: message.Object{ID: objectID}}
	if err := c.to.conn.Request(ctx, ask, &got); err != nil {
		return ObjectInfo{}, fmt.Errorf("object info: %w", err)
	}
	return decodeObject(got), nil
}

// Objects lists the managed objects of the endpoints, or all if none is given, with the sessions that hold them, in the
// order in which they were made. The server is asked as often as it takes; an object that is made or goes meanwhile may
// be in the list or not.
func (c *caller) Objects(ctx context.Context, endpoints ...string) ([]ObjectInfo, error) {
	list := []ObjectInfo{}
	for ask := (message.Objects{Endpoints: endpoints}); ; {
		var got message.ObjectsListed
		if err := c.to.conn.Request(ctx, link.Request{Op: message.OpObjects, Body: ask}, &got); err != nil {
			return nil, fmt.Errorf("objects: %w", err)
		}
		for _, info := range got.Objects {
			list = append(list, decodeObject(info))
		}
		if got.Next == 0 {
			return list, nil
		}
		if got.Next <= ask.After || len(got.Objects) == 0 || len(list) > message.MaxElements {
			return nil, fmt.Errorf("objects: %w: the list does not go on as it should after %d objects", status.ErrProtocol, len(list))
		}
		ask.After = got.Next
	}
}

// Destroy drops a managed object whoever has references to it, and returns it as it was, with those who held it: their
// references become stale, and they hear which process did it. What they have mapped stays theirs. The owner's user and
// root may do that; others are [ErrPermission]. An object that the server does not have is [ErrStale].
func (c *caller) Destroy(ctx context.Context, objectID string) (ObjectInfo, error) {
	var got message.ObjectInfo
	ask := link.Request{Op: message.OpObjectDestroy, Body: message.Object{ID: objectID}}
	if err := c.to.conn.Request(ctx, ask, &got); err != nil {
		return ObjectInfo{}, fmt.Errorf("destroy object %s: %w", message.CutText(objectID, status.MaxShown), err)
	}
	return decodeObject(got), nil
}

// EnsureLive describes a managed object that came from the server with that id, empty for any. One that is gone is a
// [*StaleError] with the reason.
func (c *caller) EnsureLive(ctx context.Context, objectID, serverID string) (ObjectInfo, error) {
	info, err := c.ObjectInfo(ctx, objectID)
	answered := info.ServerID
	var stale *status.StaleError
	if errors.As(err, &stale) {
		answered = stale.ServerID
	} else if err != nil {
		return ObjectInfo{}, err
	}
	if serverID != "" && answered != serverID {
		return ObjectInfo{}, &status.StaleError{ObjectID: objectID, ServerID: serverID, Reason: status.StaleServerMismatch}
	}
	return info, err
}
