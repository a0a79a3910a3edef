package endpoint

import (
	"time"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ObjectInfo describes a managed object at one moment.
type ObjectInfo struct {
	// ID names the object within its server's life, ServerID the server.
	ID       string `json:"object_id"`
	ServerID string `json:"server_id"`
	// Endpoint is the endpoint that made it.
	Endpoint string `json:"endpoint"`
	// CacheKey is the key under which it is cached; empty where it is not.
	CacheKey string `json:"cache_key,omitempty"`
	// Refs is how many references all sessions have together, Mine how many of them are the caller's session's.
	Refs uint64 `json:"refcount"`
	Mine uint64 `json:"mine"`
	// Bytes is the size of its memory and encoding.
	Bytes uint64 `json:"bytes"`
	// CreatedAt is when it was made, LastAccessedAt when a reference was last given out.
	CreatedAt      time.Time `json:"created_at"`
	LastAccessedAt time.Time `json:"last_accessed_at"`
	// Devices are those that its memory is on.
	Devices []DeviceInfo `json:"devices"`
	// Holders are the sessions that have references, those that have had them longest first; at most a hundred.
	// Sessions is how many there are.
	Holders  []ObjectHolder `json:"holders"`
	Sessions int            `json:"sessions"`
}

// ObjectHolder is a session that has references to a managed object.
type ObjectHolder struct {
	Process
	// Session numbers the connection within the owner's life.
	Session uint64 `json:"session"`
	// Refs is how many references it has.
	Refs uint64 `json:"refs"`
	// Since is when it got the first of those that it has had without a break.
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

// Released is what became of one reference that was to be given back.
type Released struct {
	// ObjectID is the object.
	ObjectID string `json:"object_id"`
	// Released reports whether a reference was taken back, Destroyed that it was the last one and the object is gone
	// with it.
	Released  bool `json:"released"`
	Destroyed bool `json:"destroyed"`
	// Refs is how many references all sessions have left together.
	Refs uint64 `json:"refcount"`
	// Err is why none was taken back: a [*StaleError] where the object is gone, [ErrPermission] where this session has
	// no reference to it.
	Err error `json:"-"`
}
