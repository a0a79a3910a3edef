package endpoint

import (
	"cmp"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Bounds of an answer that lists objects.
const (
	// listedHolders is how many holders of one object are named.
	listedHolders = 100
	// listedObjects is how many objects there are in one answer.
	listedObjects = 1000
	// listedBytes is how large an answer becomes at most, whatever a frame may have.
	listedBytes = 1 << 20
	// What the parts of a description have beside their texts, at most.
	objectBytes, holderBytes, deviceBytes = 256, 64, 64
)

// info describes an object to a session.
func (o *objects) info(id string, session uint64) (message.ObjectInfo, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return message.ObjectInfo{}, o.missing(id)
	}
	return obj.describeLocked(session), nil
}

// describeLocked is what the books know of an object. The holders have numbers only: see complete.
func (obj *object) describeLocked(session uint64) message.ObjectInfo {
	info := message.ObjectInfo{
		ID: obj.id, Endpoint: obj.endpoint, Refs: uint64(obj.total), Mine: uint64(len(obj.refs[session].tokens)),
		Bytes: uint64(obj.result.payload.Bytes()), CreatedAt: obj.created.UnixNano(), AccessedAt: obj.accessed.UnixNano(),
		Sessions: uint64(len(obj.refs)), Devices: obj.result.payload.Devices(), CacheKey: obj.result.key(),
	}
	for session, h := range obj.refs {
		info.Holders = append(info.Holders, message.ObjectHolder{Session: session, Refs: uint64(len(h.tokens)), Since: h.since.UnixNano()})
	}
	slices.SortFunc(info.Holders, func(a, b message.ObjectHolder) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Session, b.Session))
	})
	info.Holders = info.Holders[:min(len(info.Holders), listedHolders)]
	return info
}

// list describes the objects that are asked for, as many as have a size of bytes together, but one at least.
func (o *objects) list(in message.Objects, session uint64, bytes int64) (out message.ObjectsListed) {
	limit := listedObjects
	if in.Limit > 0 && in.Limit < listedObjects {
		limit = int(in.Limit)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var found []*object
	for _, obj := range o.byID {
		if obj.number > in.After && (len(in.Endpoints) == 0 || slices.Contains(in.Endpoints, obj.endpoint)) {
			found = append(found, obj)
		}
	}
	slices.SortFunc(found, func(a, b *object) int { return cmp.Compare(a.number, b.number) })
	for i, obj := range found {
		info := obj.describeLocked(session)
		bytes -= sizeOf(&info)
		if i == limit || i > 0 && bytes < 0 {
			out.Next = found[i-1].number
			break
		}
		out.Objects = append(out.Objects, info)
	}
	return out
}

// sizeOf is how many bytes a description takes at most, with the labels that its holders may have.
func sizeOf(info *message.ObjectInfo) int64 {
	n := objectBytes + len(info.Endpoint) + len(info.CacheKey) + len(info.Holders)*(holderBytes+labelBytes)
	return int64(n) + sizeOfDevices(info.Devices)
}

// sizeOfDevices is how many bytes their description takes at most.
func sizeOfDevices(list []message.DeviceInfo) (n int64) {
	for _, d := range list {
		n += deviceBytes + int64(len(d.Name))
	}
	return n
}

// listObjects answers a session's question.
func (s *Server) listObjects(in message.Objects, session uint64) message.ObjectsListed {
	frame, _ := inproc.FrameLimits(s.opts.Limits.Wire)
	out := s.objects.list(in, session, min(frame-envelopeBytes, listedBytes))
	infos := make([]*message.ObjectInfo, len(out.Objects))
	for i := range out.Objects {
		infos[i] = &out.Objects[i]
	}
	s.complete(infos...)
	return out
}

// complete says in descriptions which server they are of, and who the holders are. One that has gone meanwhile keeps its number.
func (s *Server) complete(infos ...*message.ObjectInfo) {
	var sessions []uint64
	for _, info := range infos {
		for _, h := range info.Holders {
			sessions = append(sessions, h.Session)
		}
	}
	who := s.processes(sessions)
	for _, info := range infos {
		info.Server = s.id
		for i := range info.Holders {
			h := &info.Holders[i]
			p := who[h.Session]
			h.PID, h.UID, h.Label = p.PID, p.UID, p.Label
		}
	}
}

// processes says who is at the other end of sessions, this process for those within it.
func (s *Server) processes(sessions []uint64) map[uint64]Process {
	who := make(map[uint64]Process)
	for _, ses := range s.sessionsOf(sessions) {
		info := ses.describe()
		who[ses.id] = Process{PID: info.PID, UID: info.UID, Label: info.Label}
	}
	return who
}
