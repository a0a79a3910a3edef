package endpoint

import (
	"time"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ObjectInfo describes a managed object at one moment.
type ObjectInfo struct {
	// ID is the id of the object, unique until its server restarts, and ServerID that of the server.
	ID       string `json:"object_id"`
	ServerID string `json:"server_id"`
	// Endpoint is the name of the endpoint that created it.
	Endpoint string `json:"endpoint"`
	// CacheKey is its cache key; empty if it is not cached.
	CacheKey string `json:"cache_key,omitempty"`
	// Refs is the number of references of all sessions, and Mine that of the caller's session.
	Refs uint64 `json:"refcount"`
	Mine uint64 `json:"mine"`
	// Bytes is the size of its memory and encoding.
	Bytes uint64 `json:"bytes"`
	// CreatedAt is the time of its creation, LastAccessedAt that of the latest reference.
	CreatedAt      time.Time `json:"created_at"`
	LastAccessedAt time.Time `json:"last_accessed_at"`
	// Devices lists the devices of its memory.
	Devices []DeviceInfo `json:"devices"`
	// Holders lists at most a hundred sessions with references, oldest first. Sessions is their total number.
	Holders  []ObjectHolder `json:"holders"`
	Sessions int            `json:"sessions"`
}

// ObjectHolder is a session that has references to a managed object.
type ObjectHolder struct {
	Process
	// Session is the number of the connection, unique until the owner restarts.
	Session uint64 `json:"session"`
	// Refs is the number of its references.
	Refs uint64 `json:"refs"`
	// Since is when it got the first reference of an uninterrupted hold.
	Since time.Time `json:"since"`
}

func decodeObject(in message.ObjectInfo) ObjectInfo {
	out := ObjectInfo{
		ID: in.ID, ServerID: in.Server, Endpoint: in.Endpoint, CacheKey: in.CacheKey, Refs: in.Refs, Mine: in.Mine, Bytes: in.Bytes,
		CreatedAt: fromNanos(in.CreatedAt), LastAccessedAt: fromNanos(in.AccessedAt),
		Devices: decodeDevices(in.Devices), Holders: []ObjectHolder{}, Sessions: int(in.Sessions),
	}
	for _, h := range in.Holders {
		out.Holders = append(out.Holders, ObjectHolder{
			Process: Process{PID: h.PID, UID: h.UID, Label: h.Label}, Session: h.Session, Refs: h.Refs, Since: fromNanos(h.Since),
		})
	}
	return out
}
