package server

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// objectOperations implements the operations on managed objects.
type objectOperations struct {
	engine   *engine.Engine
	sessions *Server     // to look up holders
	server   string      // the server's id
	limit    int         // of one client's references
	frame    wire.Limits // of answers
	log      *slog.Logger
}

func (o *objectOperations) info(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Object
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	info, err := o.described(r.Session, in.ID)
	if err != nil {
		return nil, err
	}
	o.complete(&info)
	return &answer{body: info}, nil
}

// described returns the description of an object that the client holds or whose endpoint it may call.
func (o *objectOperations) described(ses *session.Session, id string) (message.ObjectInfo, error) {
	info, err := o.engine.Objects.Info(id, ses.ID)
	if err == nil && info.Mine == 0 {
		err = clientOf(ses).may(access.Call, info.Endpoint)
	}
	return info, err
}

// list returns the objects that fit one answer.
func (o *objectOperations) list(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Objects
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	return &answer{body: o.listed(in, r.Session)}, nil
}

// destroy removes all references to an object.
func (o *objectOperations) destroy(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Object
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	c := clientOf(r.Session)
	if err := c.may(access.Destroy, ""); err != nil {
		return nil, err
	}
	if err := c.mayChange(changeDestroy, "object", in.ID); err != nil {
		return nil, err
	}
	info, err := o.drop(in.ID, destroyed(r.Session))
	if err != nil {
		return nil, err
	}
	o.complete(&info)
	c.audit(changeDestroy, "name", info.Endpoint, "object", in.ID)
	return &answer{body: info}, nil
}

// ownerOrRoot reports whether the peer runs as the owner's user or as root, by its kernel credentials.
func ownerOrRoot(ses *session.Session) bool {
	peer := ses.Peer()
	return peer.Trusted([]uint32{0})
}

// destroyed returns the detail that names the process that destroyed an object, for its holders.
func destroyed(by *session.Session) string {
	if label := by.Label(); label != "" {
		return fmt.Sprintf("destroyed by process %d (%s)", by.Peer().PID, label)
	}
	return fmt.Sprintf("destroyed by process %d", by.Peer().PID)
}

func (o *objectOperations) release(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.ReleaseObjects
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	if len(in.Tokens) > 0 && len(in.Tokens) != len(in.IDs) {
		return nil, fmt.Errorf("%w: %d tokens for %d objects", status.ErrInvalid, len(in.Tokens), len(in.IDs))
	}
	if len(in.IDs) > message.MaxReleases {
		return nil, status.Exceeded(status.LimitReleases, "a request releases at most %d references, this one names %d", message.MaxReleases, len(in.IDs))
	}
	out := message.ObjectsReleased{Objects: make([]message.ObjectReleased, 0, len(in.IDs))}
	for i, id := range in.IDs {
		row := message.ObjectReleased{ID: id}
		var token uint64
		if len(in.Tokens) > 0 {
			token = in.Tokens[i]
		}
		was, err := o.engine.ReleaseReference(id, token, r.Session.ID)
		row.Released, row.Refs, row.Token = err == nil, uint64(was.Left), was.Token
		row.Destroyed = row.Released && was.Left == 0
		if err != nil {
			row.Error = status.EncodeSafely(err)
		}
		out.Objects = append(out.Objects, row)
	}
	return &answer{body: out}, nil
}

// refer adds a reference for the session.
func (o *objectOperations) refer(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Object
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	if _, err := o.described(r.Session, in.ID); err != nil {
		return nil, err
	}
	token, err := o.engine.Objects.ReferAgain(in.ID, r.Session.ID, r.Session.LimitOf(o.limit))
	if err != nil {
		return nil, err
	}
	info, err := o.engine.Objects.Info(in.ID, r.Session.ID)
	if err != nil {
		return nil, err
	}
	info.Token = token
	o.complete(&info)
	return &answer{body: info, undo: func() { _, _ = o.engine.ReleaseReference(in.ID, token, r.Session.ID) }}, nil
}
