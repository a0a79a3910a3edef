package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func doObjectInfo(_ context.Context, r request) (reply, error) {
	var in message.Object
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	info, err := r.session.server.engine.Objects.Info(in.ID, r.session.id)
	if err != nil {
		return reply{}, err
	}
	completeObjects(r.session.server, &info)
	return reply{body: info}, nil
}

// doObjects lists objects, as many as fit an answer.
func doObjects(_ context.Context, r request) (reply, error) {
	var in message.Objects
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	return reply{body: listObjects(r.session.server, in, r.session.id)}, nil
}

// doObjectDestroy takes all references to an object away.
func doObjectDestroy(_ context.Context, r request) (reply, error) {
	var in message.Object
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	if !r.session.ownerOrRoot() {
		return reply{}, fmt.Errorf("%w: only the owner's user and root may destroy objects that others hold", status.ErrPermission)
	}
	s := r.session.server
	info, err := s.destroyObject(in.ID, r.session.destroys())
	if err != nil {
		return reply{}, err
	}
	completeObjects(s, &info)
	return reply{body: info}, nil
}

// ownerOrRoot reports whether the peer runs as the owner's user or as root, by what the kernel says of it.
func (ses *session) ownerOrRoot() bool {
	peer := ses.conn.Peer()
	return peer.SameUser() || peer.UID == 0
}

// destroys tells the holders of an object which process destroyed it.
func (ses *session) destroys() string {
	who := processesOf(ses.server, []uint64{ses.id})[ses.id]
	if who.Label == "" {
		return fmt.Sprintf("destroyed by process %d", who.PID)
	}
	return fmt.Sprintf("destroyed by process %d (%s)", who.PID, who.Label)
}

func doObjectRelease(_ context.Context, r request) (reply, error) {
	var in message.ReleaseObjects
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	if len(in.Tokens) > 0 && len(in.Tokens) != len(in.IDs) {
		return reply{}, fmt.Errorf("%w: %d tokens for %d objects", status.ErrInvalid, len(in.Tokens), len(in.IDs))
	}
	if len(in.IDs) > message.MaxReleases {
		return reply{}, limits.Exceeded(limits.Releases, "a request releases at most %d references, this one names %d", message.MaxReleases, len(in.IDs))
	}
	s := r.session.server
	out := message.ObjectsReleased{Objects: make([]message.ObjectReleased, 0, len(in.IDs))}
	for i, id := range in.IDs {
		row := message.ObjectReleased{ID: id}
		var token uint64
		if len(in.Tokens) > 0 {
			token = in.Tokens[i]
		}
		was, err := s.engine.ReleaseReference(id, token, r.session.id)
		row.Released, row.Refs, row.Token = err == nil, uint64(was.Left), was.Token
		row.Destroyed = row.Released && was.Left == 0
		if err != nil {
			row.Error = status.EncodeSafely(err)
		}
		out.Objects = append(out.Objects, row)
	}
	return reply{body: out}, nil
}

// doObjectWatch makes the session hear of objects that the server destroys.
func doObjectWatch(_ context.Context, r request) (reply, error) {
	sub, err := r.session.events.AddObjects(r.id)
	if err != nil {
		return reply{}, err
	}
	return reply{
		body: message.WatchingObjects{}, after: func() { r.session.events.Begin(sub) }, undo: func() { r.session.events.Remove(r.id) },
	}, nil
}

// doObjectRefer gives the session one reference more.
func doObjectRefer(_ context.Context, r request) (reply, error) {
	var in message.Object
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	s := r.session.server
	token, err := s.engine.Objects.ReferAgain(in.ID, r.session.id, s.opts.Limits.Objects)
	if err != nil {
		return reply{}, err
	}
	info, err := s.engine.Objects.Info(in.ID, r.session.id)
	if err != nil {
		return reply{}, err
	}
	info.Token = token
	completeObjects(s, &info)
	return reply{body: info, undo: func() { _, _ = s.engine.ReleaseReference(in.ID, token, r.session.id) }}, nil
}
