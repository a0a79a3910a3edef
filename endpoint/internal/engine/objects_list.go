package engine

import (
	"cmp"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Limits of an answer that lists objects.
const (
	// maxListedHolders is the maximum number of holders listed for one object.
	maxListedHolders = 100
	// maxListedObjects is the maximum number of objects in one answer.
	maxListedObjects = 1000
	// MaxListBytes is the maximum size of an answer, even if a frame could be larger.
	MaxListBytes = 1 << 20
	// Maximum encoded size of each part of a description without its strings.
	objectBytes, holderBytes, deviceBytes = 256, 64, 64
)

// Info returns the description of an object for a session.
func (o *objects) Info(id string, session uint64) (message.ObjectInfo, error) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return message.ObjectInfo{}, o.missing(id)
	}
	return obj.describeLocked(session), nil
}

// describeLocked describes an object. Holders have only their numbers; the server adds their labels.
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
	info.Holders = info.Holders[:min(len(info.Holders), maxListedHolders)]
	return info
}

// List describes the requested objects in at most bytes, but always at least one.
func (o *objects) List(in message.Objects, session uint64, bytes int64) (out message.ObjectsListed) {
	limit := maxListedObjects
	if in.Limit > 0 && in.Limit < maxListedObjects {
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

// sizeOf returns the maximum encoded size of a description, including the labels that its holders may get.
func sizeOf(info *message.ObjectInfo) int64 {
	n := objectBytes + len(info.Endpoint) + len(info.CacheKey) + len(info.Holders)*(holderBytes+status.MaxLabelBytes)
	return int64(n) + SizeOfDevices(info.Devices)
}

// SizeOfDevices returns the maximum encoded size of the descriptions of devices.
func SizeOfDevices(list []message.DeviceInfo) (n int64) {
	for _, d := range list {
		n += deviceBytes + int64(len(d.Name))
	}
	return n
}
