package wire

// Object asks about a managed object.
type Object struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
}

// ObjectInfo answers [OpObjectInfo].
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
}

// ReleaseObjects gives one reference back for each id; an id may stand more than once.
type ReleaseObjects struct {
	// IDs are the objects.
	IDs []string `cbor:"1,keyasint"`
	// Tokens, if there are any, are as many as IDs: which reference is meant, 0 for the oldest that the session has. A reference
	// that was given back before is not there any more, so asking twice is the same as asking once.
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
	// Released tells that a reference was given back; false for an object that is gone or of which the session has none.
	Released bool `cbor:"2,keyasint,omitempty"`
	// Destroyed tells that it was the last one.
	Destroyed bool `cbor:"3,keyasint,omitempty"`
	// Refs is how many references are left.
	Refs uint64 `cbor:"4,keyasint,omitempty"`
	// Token is the reference that was given back.
	Token uint64 `cbor:"5,keyasint,omitempty"`
}

// WatchObjects asks to be told of objects that are destroyed while this session has references to them.
type WatchObjects struct{}

// WatchingObjects answers [OpObjectWatch]. From now on event frames with the ID of the request may come.
type WatchingObjects struct{}

// ObjectGone tells of an object that the server has destroyed although this session had references to it: the body of an event
// frame with the ID of the watch. The references are gone with it.
type ObjectGone struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
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
