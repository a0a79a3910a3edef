package message

// Object requests information about a managed object.
type Object struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
}

// ObjectInfo answers [OpObjectInfo], and describes an object in other answers.
type ObjectInfo struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
	// Server is the server that holds it.
	Server string `cbor:"2,keyasint"`
	// Endpoint is the endpoint that created it.
	Endpoint string `cbor:"3,keyasint"`
	// CacheKey is its key in the cache; empty if it is not cached.
	CacheKey string `cbor:"4,keyasint,omitempty"`
	// Refs is the number of references of all sessions.
	Refs uint64 `cbor:"5,keyasint"`
	// Mine is the number of references of the requesting session.
	Mine uint64 `cbor:"6,keyasint,omitempty"`
	// Bytes is the size of its memory.
	Bytes uint64 `cbor:"7,keyasint,omitempty"`
	// CreatedAt is the time of creation, in nanoseconds since 1970, UTC.
	CreatedAt int64 `cbor:"8,keyasint"`
	// AccessedAt is the time when the last reference was added, in nanoseconds since 1970, UTC.
	AccessedAt int64 `cbor:"9,keyasint"`
	// Token is the reference that [OpObjectRefer] added; 0 in other answers.
	Token uint64 `cbor:"10,keyasint,omitempty"`
	// Holders lists the sessions with references, oldest first; the first ones if there are very many.
	Holders []ObjectHolder `cbor:"11,keyasint,omitempty"`
	// Sessions is the number of sessions with references.
	Sessions uint64 `cbor:"12,keyasint,omitempty"`
	// Devices lists the devices of its memory, each once.
	Devices []DeviceInfo `cbor:"13,keyasint,omitempty"`
}

// ObjectHolder describes a session with references to a managed object.
type ObjectHolder struct {
	// Session numbers the holder's connection within the server's life.
	Session uint64 `cbor:"1,keyasint"`
	// Refs is the number of its references.
	Refs uint64 `cbor:"2,keyasint"`
	// PID is the process.
	PID int32 `cbor:"3,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"4,keyasint,omitempty"`
	// Label is its display name.
	Label string `cbor:"5,keyasint,omitempty"`
	// Since is the time since which it has held references without interruption, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"6,keyasint,omitempty"`
}

// Objects requests managed objects in the order of their creation.
type Objects struct {
	// Endpoints selects the endpoints; empty selects all.
	Endpoints []string `cbor:"1,keyasint,omitempty"`
	// After is Next of the previous answer; 0 for the beginning.
	After uint64 `cbor:"2,keyasint,omitempty"`
	// Limit is the maximum number of objects; 0 means the server's maximum.
	Limit uint64 `cbor:"3,keyasint,omitempty"`
}

// ObjectsListed answers [OpObjects], with as many objects as fit one answer.
type ObjectsListed struct {
	// Objects holds the objects. Cache keys over a kilobyte are cut.
	Objects []ObjectInfo `cbor:"1,keyasint"`
	// Next is After of the request for the following objects; 0 at the end.
	Next uint64 `cbor:"2,keyasint,omitempty"`
}

// MaxReleases is the maximum number of objects in one [ReleaseObjects], because each has a row in the answer.
const MaxReleases = 4096

// ReleaseObjects releases one reference for each id; an id may occur more than once.
type ReleaseObjects struct {
	// IDs are the objects.
	IDs []string `cbor:"1,keyasint"`
	// Tokens, if not empty, has the length of IDs and selects the references; 0 means the session's oldest. A released
	// token cannot be released again, so repeating the request has no effect.
	Tokens []uint64 `cbor:"2,keyasint,omitempty"`
}

// ObjectsReleased answers [OpObjectRelease] with one row for each id, in order.
type ObjectsReleased struct {
	// Objects holds the outcomes.
	Objects []ObjectReleased `cbor:"1,keyasint"`
}

// ObjectReleased is the outcome for one reference.
type ObjectReleased struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
	// Released reports whether a reference was released. It is false if the object is gone or the session has no
	// reference.
	Released bool `cbor:"2,keyasint,omitempty"`
	// Destroyed reports whether it was the last reference.
	Destroyed bool `cbor:"3,keyasint,omitempty"`
	// Refs is the number of remaining references of all sessions.
	Refs uint64 `cbor:"4,keyasint,omitempty"`
	// Token is the released reference.
	Token uint64 `cbor:"5,keyasint,omitempty"`
	// Error is the reason for no release: [CodeStaleHandle] for a missing object, [CodePermissionDenied] if this
	// session has no reference; nil after a release.
	Error *Error `cbor:"6,keyasint,omitempty"`
}

// WatchObjects requests an event for each object that is destroyed while this session has references to it.
type WatchObjects struct{}

// WatchingObjects answers [OpObjectWatch]. Event frames with the ID of the request may follow.
type WatchingObjects struct{}

// ObjectGone reports that the server has destroyed an object to which this session had references: the body of an event
// frame with the ID of the watch. The references have ended.
type ObjectGone struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
	// Reason is a short text for display; it may be empty.
	Reason string `cbor:"2,keyasint,omitempty"`
}

// InvalidateEndpoint drops all cached results of an endpoint.
type InvalidateEndpoint struct {
	// Endpoint is its name.
	Endpoint string `cbor:"1,keyasint"`
}

// Invalidated answers [OpInvalidateCall] and [OpInvalidateEndpoint].
type Invalidated struct {
	// Count is the number of dropped results, including those in progress.
	Count uint64 `cbor:"1,keyasint"`
}
