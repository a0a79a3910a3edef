package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// destroyObject drops an object and tells the sessions that had references why, if it knows. It returns the object as
// it was.
func (s *Server) destroyObject(id, reason string) (message.ObjectInfo, error) {
	obj, holders, was, err := s.engine.Objects.Destroy(id)
	if err != nil {
		return was, err
	}
	s.engine.Dispose(obj)
	for _, ses := range s.sessionsOf(holders) {
		ses.events.ObjectGone(id, reason)
	}
	s.log.Info("object destroyed", "object", id, "endpoint", obj.Endpoint, "sessions", len(holders), "reason", reason)
	return was, nil
}

// sessionsOf are the sessions with those numbers that there are, this process's own among them.
func (s *Server) sessionsOf(ids []uint64) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*session
	for _, id := range ids {
		if ses := s.sessions[id]; ses != nil {
			list = append(list, ses)
		}
	}
	return list
}

// listObjects answers a session's question.
func listObjects(s *Server, in message.Objects, session uint64) message.ObjectsListed {
	frame, _ := inproc.FrameLimits(s.opts.Limits.Wire)
	out := s.engine.Objects.List(in, session, min(frame-engine.EnvelopeBytes, engine.ListedBytes))
	infos := make([]*message.ObjectInfo, len(out.Objects))
	for i := range out.Objects {
		infos[i] = &out.Objects[i]
	}
	completeObjects(s, infos...)
	return out
}

// completeObjects says in descriptions which server they are of, and their holders. One that has gone meanwhile
// keeps its number.
func completeObjects(s *Server, infos ...*message.ObjectInfo) {
	var sessions []uint64
	for _, info := range infos {
		for _, h := range info.Holders {
			sessions = append(sessions, h.Session)
		}
	}
	who := processesOf(s, sessions)
	for _, info := range infos {
		info.Server = s.id
		for i := range info.Holders {
			h := &info.Holders[i]
			p := who[h.Session]
			h.PID, h.UID, h.Label = p.PID, p.UID, p.Label
		}
	}
}

// processesOf are the processes at the other end of sessions, this process for those within it.
func processesOf(s *Server, sessions []uint64) map[uint64]Process {
	who := make(map[uint64]Process)
	for _, ses := range s.sessionsOf(sessions) {
		info := ses.describe()
		who[ses.id] = Process{PID: info.PID, UID: info.UID, Label: info.Label}
	}
	return who
}
