package engine

import (
	"cmp"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Bounds of an answer that lists objects.
const (
	// listedHolders is how many holders of one object are named.
	listedHolders = 100
	// listedObjects is how many objects there are in one answer.
	listedObjects = 1000
	// ListedBytes is how large an answer becomes at most, whatever a frame may have.
	ListedBytes = 1 << 20
	// What the parts of a description have beside their texts, at most.
	objectBytes, holderBytes, deviceBytes = 256, 64, 64
)

// Info describes an object to a session.
func (o *objects) Info(id string, session uint64) (message.ObjectInfo, error) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return message.ObjectInfo{}, o.missing(id)
	}
	return obj.describeLocked(session), nil
}

// describeLocked describes an object. The holders have numbers only: see complete.
func (obj *Object) describeLocked(session uint64) message.ObjectInfo {
	info := message.ObjectInfo{
		ID: obj.ID, Endpoint: obj.Endpoint, Refs: uint64(obj.total), Mine: uint64(len(obj.Refs[session].Tokens)),
		Bytes: uint64(obj.Result.Payload.Bytes()), CreatedAt: obj.created.UnixNano(), AccessedAt: obj.accessed.UnixNano(),
		Sessions: uint64(len(obj.Refs)), Devices: obj.Result.Payload.Devices(), CacheKey: obj.Result.key(),
	}
	for session, h := range obj.Refs {
		info.Holders = append(info.Holders, message.ObjectHolder{Session: session, Refs: uint64(len(h.Tokens)), Since: h.since.UnixNano()})
	}
	slices.SortFunc(info.Holders, func(a, b message.ObjectHolder) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Session, b.Session))
	})
	info.Holders = info.Holders[:min(len(info.Holders), listedHolders)]
	return info
}

// List describes the objects that are asked for, as many as have a size of bytes together, but one at least.
func (o *objects) List(in message.Objects, session uint64, bytes int64) (out message.ObjectsListed) {
	limit := listedObjects
	if in.Limit > 0 && in.Limit < listedObjects {
		limit = int(in.Limit)
	}
	o.Mu.Lock()
	defer o.Mu.Unlock()
	var found []*Object
	for _, obj := range o.byID {
		if obj.number > in.After && (len(in.Endpoints) == 0 || slices.Contains(in.Endpoints, obj.Endpoint)) {
			found = append(found, obj)
		}
	}
	slices.SortFunc(found, func(a, b *Object) int { return cmp.Compare(a.number, b.number) })
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
	n := objectBytes + len(info.Endpoint) + len(info.CacheKey) + len(info.Holders)*(holderBytes+limits.LabelBytes)
	return int64(n) + SizeOfDevices(info.Devices)
}

// SizeOfDevices is how many bytes their description takes at most.
func SizeOfDevices(list []message.DeviceInfo) (n int64) {
	for _, d := range list {
		n += deviceBytes + int64(len(d.Name))
	}
	return n
}
