package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// drop destroys an object and notifies sessions that had references, with the reason if it is known. It returns the
// object's last description.
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

// listed returns one page of a session's list.
func (o *objectOperations) listed(in message.Objects, session uint64) message.ObjectsListed {
	frame := o.limits.Wire.WithDefaults().Frame
	out := o.engine.Objects.List(in, session, min(frame-engine.EnvelopeBytes, engine.MaxListBytes))
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

// processes returns the peer process of each session, and this process for sessions within it.
func (o *objectOperations) processes(sessions []uint64) map[uint64]Process {
	who := make(map[uint64]Process)
	for _, ses := range o.sessions.Of(sessions) {
		peer := ses.Peer()
		who[ses.ID] = Process{PID: peer.PID, UID: peer.UID, Label: ses.Label()}
	}
	return who
}
