package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// drop drops an object and tells the sessions that had references why, if it knows. It returns the object as
// it was.
func (o *objectOperations) drop(id, reason string) (message.ObjectInfo, error) {
	obj, holders, was, err := o.engine.Objects.Destroy(id)
	if err != nil {
		return was, err
	}
	o.engine.Dispose(obj)
	for _, ses := range o.sessions.Of(holders) {
		ses.Events.ObjectGone(id, reason)
	}
	o.log.Info("object destroyed", "object", id, "endpoint", obj.Endpoint, "sessions", len(holders), "reason", reason)
	return was, nil
}

// listed answers a session's question.
func (o *objectOperations) listed(in message.Objects, session uint64) message.ObjectsListed {
	frame, _ := inproc.FrameLimits(o.limits.Wire)
	out := o.engine.Objects.List(in, session, min(frame-engine.EnvelopeBytes, engine.ListedBytes))
	infos := make([]*message.ObjectInfo, len(out.Objects))
	for i := range out.Objects {
		infos[i] = &out.Objects[i]
	}
	o.complete(infos...)
	return out
}

// complete says in descriptions which server they are of, and their holders. One that has gone meanwhile
// keeps its number.
func (o *objectOperations) complete(infos ...*message.ObjectInfo) {
	var sessions []uint64
	for _, info := range infos {
		for _, h := range info.Holders {
			sessions = append(sessions, h.Session)
		}
	}
	who := o.processes(sessions)
	for _, info := range infos {
		info.Server = o.server
		for i := range info.Holders {
			h := &info.Holders[i]
			p := who[h.Session]
			h.PID, h.UID, h.Label = p.PID, p.UID, p.Label
		}
	}
}

// processes are the processes at the other end of sessions, this process for those within it.
func (o *objectOperations) processes(sessions []uint64) map[uint64]Process {
	who := make(map[uint64]Process)
	for _, ses := range o.sessions.Of(sessions) {
		peer := ses.Peer()
		who[ses.ID] = Process{PID: peer.PID, UID: peer.UID, Label: ses.Label()}
	}
	return who
}
