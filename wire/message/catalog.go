package message

// Ping asks for a [Pong].
type Ping struct {
	// Timestamp is anything the client likes, usually nanoseconds of its own clock.
	Timestamp int64 `cbor:"1,keyasint,omitempty"`
}

// Pong answers a [Ping].
type Pong struct {
	// Timestamp is that of the ping.
	Timestamp int64 `cbor:"1,keyasint,omitempty"`
}

// Acquire asks for a lease on a version of a name.
type Acquire struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
	// Version is the version, or 0 for the newest.
	Version uint64 `cbor:"2,keyasint,omitempty"`
}

// Acquired answers an [Acquire]. Its frame carries the descriptors that Handles name.
type Acquired struct {
	// Lease is what [Release] gives back. It belongs to the session and ends with it.
	Lease uint64 `cbor:"1,keyasint"`
	// Name is the published name.
	Name string `cbor:"2,keyasint"`
	// Version is the version that was leased.
	Version uint64 `cbor:"3,keyasint"`
	// Manifest says which tensors lie where.
	Manifest Manifest `cbor:"4,keyasint"`
	// Handles are the manifest's storages, in its order.
	Handles []Handle `cbor:"5,keyasint"`
}

// Release gives leases back. Leases of other sessions are refused with [CodePermissionDenied], unknown ones with
// [CodeNotFound]; the others of the same message are released all the same.
type Release struct {
	// Leases are the leases.
	Leases []uint64 `cbor:"1,keyasint"`
}

// Released answers a [Release].
type Released struct {
	// Count is how many leases were released.
	Count uint64 `cbor:"1,keyasint"`
}

// Publish publishes memory of the client as the next version of a name. Its frame carries the descriptors that Handles
// name.
type Publish struct {
	// Name is the name to publish under.
	Name string `cbor:"1,keyasint"`
	// Manifest says which tensors lie where.
	Manifest Manifest `cbor:"2,keyasint"`
	// Handles are the manifest's storages, in its order.
	Handles []Handle `cbor:"3,keyasint"`
	// Source says where the tensors come from, for people; it may be empty.
	Source string `cbor:"4,keyasint,omitempty"`
	// Digests asks the server to compute the digests of the version when it is published, where [FeatureDigests] was
	// agreed. [OpDigests] waits for them.
	Digests bool `cbor:"5,keyasint,omitempty"`
}

// Published answers a [Publish].
type Published struct {
	// Version is the version that the name now has.
	Version uint64 `cbor:"1,keyasint"`
}

// Withdraw takes a name off the catalog. Holders of a version keep it.
type Withdraw struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
}

// Withdrawn answers a [Withdraw].
type Withdrawn struct{}

// List asks what is published. An answer has as many versions as fit; where there are more, it says how to go on.
type List struct {
	// After is the name behind which the list begins, or where it goes on: the Next of the answer before. Empty for the
	// beginning.
	After string `cbor:"1,keyasint,omitempty"`
	// AfterVersion is the NextVersion of the answer before: versions of that name are listed from behind it on.
	AfterVersion uint64 `cbor:"2,keyasint,omitempty"`
}

// Listed answers a [List].
type Listed struct {
	// Models are the names, sorted.
	Models []ModelInfo `cbor:"1,keyasint"`
	// Loading are the names that the server loads a version of, or failed to, sorted. They need not be among Models.
	// They stand in the first answer of a list.
	Loading []Loading `cbor:"2,keyasint,omitempty"`
	// Next and NextVersion are the name and the version that came last, where there are more; empty at the end. The
	// next answer may begin with more versions of the same name.
	Next        string `cbor:"3,keyasint,omitempty"`
	NextVersion uint64 `cbor:"4,keyasint,omitempty"`
}

// Loading describes a version that a server loads and has not published yet.
type Loading struct {
	// Name is the name under which it will be published.
	Name string `cbor:"1,keyasint"`
	// State says how it stands.
	State LoadState `cbor:"2,keyasint"`
	// Done is how many bytes are loaded.
	Done uint64 `cbor:"3,keyasint,omitempty"`
	// Total is how many there are; 0 if that is not known yet.
	Total uint64 `cbor:"4,keyasint,omitempty"`
	// StartedAt is when it began, in nanoseconds since 1970, UTC; 0 before.
	StartedAt int64 `cbor:"5,keyasint,omitempty"`
	// UpdatedAt is when Done was counted, or when it failed.
	UpdatedAt int64 `cbor:"6,keyasint,omitempty"`
	// Source is where the tensors come from, usually a file.
	Source string `cbor:"7,keyasint,omitempty"`
	// Error is why it failed; nil in other states.
	Error *Error `cbor:"8,keyasint,omitempty"`
}

// LoadState says how a version stands that is being loaded.
type LoadState uint8

// The states of loading. Numbers are stable; a client takes one that it does not know for LoadRunning.
const (
	// LoadWaiting has not begun.
	LoadWaiting LoadState = 1
	// LoadRunning is being loaded.
	LoadRunning LoadState = 2
	// LoadFailed was not loaded. It stays on the list until the name is loaded again or published.
	LoadFailed LoadState = 3
)

// String is "waiting", "loading" or "failed".
func (s LoadState) String() string {
	switch s {
	case LoadWaiting:
		return "waiting"
	case LoadFailed:
		return "failed"
	}
	return "loading"
}

// Info asks about one name.
type Info struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
	// Version is the version whose manifest is asked for, or 0 for the newest.
	Version uint64 `cbor:"2,keyasint,omitempty"`
	// Manifest asks for the manifest too.
	Manifest bool `cbor:"3,keyasint,omitempty"`
}

// InfoResult answers an [Info].
type InfoResult struct {
	// Model describes the name.
	Model ModelInfo `cbor:"1,keyasint"`
	// Manifest is the manifest that was asked for, else nil. It takes no lease.
	Manifest *Manifest `cbor:"2,keyasint,omitempty"`
	// Loading is the next version, if the server loads one or failed to, else nil.
	Loading *Loading `cbor:"3,keyasint,omitempty"`
}

// ModelInfo describes a published name.
type ModelInfo struct {
	// Name is the name.
	Name string `cbor:"1,keyasint"`
	// Versions are the versions that still have memory, newest first.
	Versions []VersionInfo `cbor:"2,keyasint"`
	// Withdrawn tells that there is no current version.
	Withdrawn bool `cbor:"3,keyasint,omitempty"`
	// More is how many older versions were left off, for which there was no room.
	More uint64 `cbor:"4,keyasint,omitempty"`
}

// VersionInfo describes one version of a name.
type VersionInfo struct {
	// Version is the version.
	Version uint64 `cbor:"1,keyasint"`
	// Bytes is the memory it has, every storage counted once.
	Bytes uint64 `cbor:"2,keyasint"`
	// Tensors is how many names it has.
	Tensors uint64 `cbor:"3,keyasint"`
	// Current tells that new readers get this version.
	Current bool `cbor:"4,keyasint,omitempty"`
	// PublishedAt is when, in nanoseconds since 1970, UTC.
	PublishedAt int64 `cbor:"5,keyasint,omitempty"`
	// Origin is the session that published it.
	Origin Origin `cbor:"6,keyasint"`
	// Holders are the sessions that hold it.
	Holders []Holder `cbor:"7,keyasint,omitempty"`
	// Devices are the devices its memory is on, each once.
	Devices []DeviceInfo `cbor:"8,keyasint,omitempty"`
	// Sessions is how many hold it, where Holders does not name all of them; else 0.
	Sessions uint64 `cbor:"9,keyasint,omitempty"`
	// Withdrawn tells that new readers are refused, for its name was withdrawn since. The name may have newer versions.
	Withdrawn bool `cbor:"10,keyasint,omitempty"`
	// DigestState says how the digests stand that the server computes of it; 0 where it computes none.
	DigestState DigestState `cbor:"11,keyasint,omitempty"`
	// Digest is the digest of the whole, 32 bytes, where they are computed.
	Digest []byte `cbor:"12,keyasint,omitempty"`
}

// Origin is the session that published a version.
type Origin struct {
	// PID is the process.
	PID int32 `cbor:"1,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"2,keyasint,omitempty"`
	// Label is its name for people.
	Label string `cbor:"3,keyasint,omitempty"`
	// Source is where the tensors came from, usually a file.
	Source string `cbor:"4,keyasint,omitempty"`
}

// Holder is a session that holds a version, as others see it.
type Holder struct {
	// Session numbers the holder's connection within the server's life.
	Session uint64 `cbor:"1,keyasint"`
	// Leases is how many leases it has on the version.
	Leases uint64 `cbor:"2,keyasint"`
	// PID is the process.
	PID int32 `cbor:"3,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"4,keyasint,omitempty"`
	// Label is its name for people.
	Label string `cbor:"5,keyasint,omitempty"`
	// Since is when the oldest of them was taken, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"6,keyasint,omitempty"`
}

// Watch asks for an event for each change of the names, or of all where there are none. The events' frames have the ID
// of this request. The current version of each name is reported first.
type Watch struct {
	// Names are the names to watch; they need not exist yet.
	Names []string `cbor:"1,keyasint,omitempty"`
}

// Watching answers a [Watch], before its first event.
type Watching struct{}

// Unwatch ends a watch. After its answer no event of that watch comes.
type Unwatch struct {
	// Watch is the ID of the watch's request.
	Watch uint64 `cbor:"1,keyasint"`
}

// Unwatched answers an [Unwatch].
type Unwatched struct{}

// EventKind says what happened.
type EventKind uint8

// The kinds of events. Numbers are stable; a client ignores those it does not know.
const (
	// EventPublished is a new current version.
	EventPublished EventKind = 1
	// EventWithdrawn is a name that has no current version any more.
	EventWithdrawn EventKind = 2
)

// String is "published", "withdrawn" or "event".
func (k EventKind) String() string {
	switch k {
	case EventPublished:
		return "published"
	case EventWithdrawn:
		return "withdrawn"
	}
	return "event"
}

// Event reports a change to a watch. A slow reader gets fewer of them, never stale ones: of several published versions
// of a name only the newest is sure to be reported.
type Event struct {
	// Seq counts the server's events upwards; gaps are changes that were not reported.
	Seq uint64 `cbor:"1,keyasint"`
	// Kind says what happened.
	Kind EventKind `cbor:"2,keyasint"`
	// Name is the name that it happened to.
	Name string `cbor:"3,keyasint"`
	// Version is the version that it happened to.
	Version uint64 `cbor:"4,keyasint,omitempty"`
}
