package server

import (
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// drop destroys an object and notifies sessions that had references, with the reason if it is known. It returns the
// object's last description.
func (o *objectOperations) drop(id, reason string) (message.ObjectInfo, error) {
	holders, was, err := o.engine.Destroy(id)
	if err != nil {
		return was, err
	}
	for _, ses := range o.sessions.Sessions.Of(holders) {
		clientOf(ses).objectGone(id, reason)
	}
	o.log.Info("object destroyed", "object", id, "endpoint", was.Endpoint, "sessions", len(holders), "reason", reason)
	return was, nil
}

// listed returns one page of a session's list. A page may have fewer objects than fit, because the client sees only those that
// it holds and those of endpoints that it may call.
func (o *objectOperations) listed(in message.Objects, ses *session.Session) message.ObjectsListed {
	frame := o.frame.WithDefaults().Frame
	out := o.engine.Objects.List(in, ses.ID, min(frame-engine.EnvelopeBytes, engine.MaxListBytes))
	if sees := clientOf(ses).sees(access.Call); sees != nil {
		out.Objects = slices.DeleteFunc(out.Objects, func(info message.ObjectInfo) bool { return info.Mine == 0 && !sees(info.Endpoint) })
	}
	infos := make([]*message.ObjectInfo, len(out.Objects))
	for i := range out.Objects {
		infos[i] = &out.Objects[i]
	}
	o.complete(infos...)
	return out
}

// complete adds the server's id and the processes of holders to descriptions. A holder that has disconnected keeps only
// its session number.
func (o *objectOperations) complete(infos ...*message.ObjectInfo) {
	var sessions []uint64
	for _, info := range infos {
		for _, h := range info.Holders {
			sessions = append(sessions, h.Session)
		}
	}
	who := map[uint64]*session.Session{}
	for _, ses := range o.sessions.Sessions.Of(sessions) {
		who[ses.ID] = ses
	}
	for _, info := range infos {
		info.Server = o.server
		for i := range info.Holders {
			h := &info.Holders[i]
			if ses := who[h.Session]; ses != nil {
				peer := ses.Peer()
				h.PID, h.UID, h.Label = peer.PID, peer.UID, ses.Label()
			}
		}
	}
}
