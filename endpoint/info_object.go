package endpoint

import (
	"time"

	"github.com/sharedtensor/sharedtensor/wire"
)

// ObjectInfo describes a managed object at one moment.
type ObjectInfo struct {
	// ID names the object within its server's life, ServerID the server.
	ID       string `json:"id"`
	ServerID string `json:"server_id"`
	// Endpoint is the endpoint that made it.
	Endpoint string `json:"endpoint"`
	// CacheKey is the key under which it is cached; empty where it is not.
	CacheKey string `json:"cache_key,omitempty"`
	// Refs is how many references all sessions have together, Mine how many of them are the caller's session's.
	Refs uint64 `json:"refs"`
	Mine uint64 `json:"mine"`
	// Bytes is the size of its memory and encoding.
	Bytes uint64 `json:"bytes"`
	// CreatedAt is when it was made, LastAccessedAt when a reference was last given out.
	CreatedAt      time.Time `json:"created_at"`
	LastAccessedAt time.Time `json:"last_accessed_at"`
}

func decodeObject(in wire.ObjectInfo) ObjectInfo {
	return ObjectInfo{
		ID: in.ID, ServerID: in.Server, Endpoint: in.Endpoint, CacheKey: in.CacheKey, Refs: in.Refs, Mine: in.Mine, Bytes: in.Bytes,
		CreatedAt: fromNanos(in.CreatedAt), LastAccessedAt: fromNanos(in.AccessedAt),
	}
}
