package message

// Object asks about a managed object.
type Object struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
}

// ObjectInfo answers [OpObjectInfo], and describes an object in other answers.
type ObjectInfo struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
	// Server is the server that has it.
	Server string `cbor:"2,keyasint"`
	// Endpoint is the endpoint that made it.
	Endpoint string `cbor:"3,keyasint"`
	// CacheKey is the key under which it is cached; empty where it is not.
	CacheKey string `cbor:"4,keyasint,omitempty"`
	// Refs is how many references all sessions have together.
	Refs uint64 `cbor:"5,keyasint"`
	// Mine is how many of them are the asking session's.
	Mine uint64 `cbor:"6,keyasint,omitempty"`
	// Bytes is the size of its memory.
	Bytes uint64 `cbor:"7,keyasint,omitempty"`
	// CreatedAt is when it was made, in nanoseconds since 1970, UTC.
	CreatedAt int64 `cbor:"8,keyasint"`
	// AccessedAt is when a reference was last given out, in nanoseconds since 1970, UTC.
	AccessedAt int64 `cbor:"9,keyasint"`
	// Token is the reference that [OpObjectRefer] gave; 0 in other answers.
	Token uint64 `cbor:"10,keyasint,omitempty"`
	// Holders are the sessions that have references, those that have had them longest first; of very many the first
	// ones.
	Holders []ObjectHolder `cbor:"11,keyasint,omitempty"`
	// Sessions is how many sessions have references.
	Sessions uint64 `cbor:"12,keyasint,omitempty"`
	// Devices are the devices its memory is on, each once.
	Devices []DeviceInfo `cbor:"13,keyasint,omitempty"`
}

// ObjectHolder is a session that has references to a managed object, as others see it.
type ObjectHolder struct {
	// Session numbers the holder's connection within the server's life.
	Session uint64 `cbor:"1,keyasint"`
	// Refs is how many references it has.
	Refs uint64 `cbor:"2,keyasint"`
	// PID is the process.
	PID int32 `cbor:"3,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"4,keyasint,omitempty"`
	// Label is its name for people.
	Label string `cbor:"5,keyasint,omitempty"`
	// Since is when it got the first of those that it has had without a break, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"6,keyasint,omitempty"`
}

// Objects asks for managed objects, in the order in which they were made.
type Objects struct {
	// Endpoints are the endpoints whose objects are asked for; none for all.
	Endpoints []string `cbor:"1,keyasint,omitempty"`
	// After is Next of the answer that is to be continued; 0 for the beginning.
	After uint64 `cbor:"2,keyasint,omitempty"`
	// Limit is how many are wanted at most; 0 for as many as the server sends at once.
	Limit uint64 `cbor:"3,keyasint,omitempty"`
}

// ObjectsListed answers [OpObjects], with as many objects as fit one answer.
type ObjectsListed struct {
	// Objects are they. Cache keys of more than a kilobyte are cut.
	Objects []ObjectInfo `cbor:"1,keyasint"`
	// Next is After of the request that gets those that follow; 0 where none do.
	Next uint64 `cbor:"2,keyasint,omitempty"`
}

// MaxReleases is how many objects one [ReleaseObjects] names at most, since each has a row of the answer.
const MaxReleases = 4096

// ReleaseObjects gives one reference back for each id; an id may stand more than once.
type ReleaseObjects struct {
	// IDs are the objects.
	IDs []string `cbor:"1,keyasint"`
	// Tokens, if there are any, are as many as IDs: which reference is meant, 0 for the oldest that the session has. A
	// reference that was given back before is not there any more, so asking twice is the same as asking once.
	Tokens []uint64 `cbor:"2,keyasint,omitempty"`
}

// ObjectsReleased answers [OpObjectRelease], one row an id, in order.
type ObjectsReleased struct {
	// Objects are what became of them.
	Objects []ObjectReleased `cbor:"1,keyasint"`
}

// ObjectReleased is what became of one reference.
type ObjectReleased struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
	// Released tells that a reference was given back; false for an object that is gone or of which the session has
	// none.
	Released bool `cbor:"2,keyasint,omitempty"`
	// Destroyed tells that it was the last one.
	Destroyed bool `cbor:"3,keyasint,omitempty"`
	// Refs is how many references all sessions have left together.
	Refs uint64 `cbor:"4,keyasint,omitempty"`
	// Token is the reference that was given back.
	Token uint64 `cbor:"5,keyasint,omitempty"`
	// Error is why nothing was given back: [CodeStaleHandle] for an object that is gone, [CodePermissionDenied] for one
	// of which this session has no reference; nil where one was.
	Error *Error `cbor:"6,keyasint,omitempty"`
}

// WatchObjects asks to be told of objects that are destroyed while this session has references to them.
type WatchObjects struct{}

// WatchingObjects answers [OpObjectWatch]. From now on event frames with the ID of the request may come.
type WatchingObjects struct{}

// ObjectGone tells of an object that the server has destroyed although this session had references to it: the body of
// an event frame with the ID of the watch. The references are gone with it.
type ObjectGone struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
	// Reason is why, in a few words for people; it may be empty.
	Reason string `cbor:"2,keyasint,omitempty"`
}

// InvalidateEndpoint drops all cached results of an endpoint.
type InvalidateEndpoint struct {
	// Endpoint is its name.
	Endpoint string `cbor:"1,keyasint"`
}

// Invalidated answers [OpInvalidateCall] and [OpInvalidateEndpoint].
type Invalidated struct {
	// Count is how many results were dropped, those being made included.
	Count uint64 `cbor:"1,keyasint"`
}
