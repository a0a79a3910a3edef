package message

import "time"

// Ping requests a [Pong].
type Ping struct {
	// Timestamp is an arbitrary number, usually nanoseconds of the client's clock.
	Timestamp int64 `cbor:"1,keyasint,omitempty"`
}

// Pong answers a [Ping].
type Pong struct {
	// Timestamp is that of the ping.
	Timestamp int64 `cbor:"1,keyasint,omitempty"`
}

// Acquire requests a lease on a version of a name.
type Acquire struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
	// Version is the version, or 0 for the newest.
	Version uint64 `cbor:"2,keyasint,omitempty"`
	// Device is the device on which the client requires the memory, if [FeaturePlacements] was agreed; nil is the device
	// of its publication.
	Device *UUID `cbor:"4,keyasint,omitempty"`
	// Part selects one part of the version, if [FeatureParts] was agreed; nil is the whole version. Its Of is 0 or the
	// required number of parts.
	Part *Part `cbor:"5,keyasint,omitempty"`
}

// FeatureParts is the feature of servers that publish versions of several parts ([Publish].Part, [Acquire].Part).
const FeatureParts = "parts"

// MaxParts is the maximum number of parts of a version, and MaxPartKey the maximum size of a [Part].Key in bytes.
const (
	MaxParts   = 1024
	MaxPartKey = 256
)

// Part identifies one part of a version, such as the tensors of one rank of an engine.
type Part struct {
	// Index is the number of the part, from 0.
	Index uint64 `cbor:"1,keyasint,omitempty"`
	// Of is the number of parts of the version.
	Of uint64 `cbor:"2,keyasint,omitempty"`
	// Key identifies the parts that belong together, in a [Publish]: parts with different keys do not form a version.
	Key string `cbor:"3,keyasint,omitempty"`
}

// FeaturePlacements is the feature of servers that copy a version to another device for the clients that acquire it
// there ([Acquire].Device).
const FeaturePlacements = "placements"

// Acquired answers an [Acquire]. Its frame carries the descriptors that Handles name.
type Acquired struct {
	// Lease is the argument of [Release]. It belongs to the session and ends with it.
	Lease uint64 `cbor:"1,keyasint"`
	// Name is the published name.
	Name string `cbor:"2,keyasint"`
	// Version is the version that was leased.
	Version uint64 `cbor:"3,keyasint"`
	// Manifest describes the tensors and their places.
	Manifest Manifest `cbor:"4,keyasint"`
	// Handles are the manifest's storages, in its order.
	Handles []Handle `cbor:"5,keyasint"`
	// Source is the source of its publication.
	Source string `cbor:"6,keyasint,omitempty"`
	// Digest is the digest of the whole version, 32 bytes, in the answer about a part whose manifest has digests of the
	// publishers for all parts.
	Digest []byte `cbor:"7,keyasint,omitempty"`
}

// Release releases leases. Leases of other sessions are refused with [CodePermissionDenied], unknown ones with
// [CodeNotFound]; the remaining leases of the message are still released.
type Release struct {
	// Leases holds the numbers of the leases.
	Leases []uint64 `cbor:"1,keyasint"`
}

// Released answers a [Release].
type Released struct {
	// Count is the number of leases released.
	Count uint64 `cbor:"1,keyasint"`
}

// Publish publishes memory of the client as the next version of a name. Its frame carries the descriptors that Handles
// name.
type Publish struct {
	// Name is the name to publish under.
	Name string `cbor:"1,keyasint"`
	// Manifest describes the tensors and their places.
	Manifest Manifest `cbor:"2,keyasint"`
	// Handles are the manifest's storages, in its order.
	Handles []Handle `cbor:"3,keyasint"`
	// Source describes the origin of the tensors, for display; it may be empty.
	Source string `cbor:"4,keyasint,omitempty"`
	// Digests makes the server compute the digests of the version after it is published, if [FeatureDigests] was
	// agreed. [OpDigests] waits for them.
	Digests bool `cbor:"5,keyasint,omitempty"`
	// After makes the number of the version greater than After.
	After uint64 `cbor:"6,keyasint,omitempty"`
	// Retain replaces the retention of the name; nil leaves it. Servers that do not support it ignore it.
	Retain *Retention `cbor:"7,keyasint,omitempty"`
	// Current is the number of the version that must be current, 0 for a name that is not published, if
	// [FeatureConditions] was agreed; nil is no condition.
	Current *uint64 `cbor:"8,keyasint,omitempty"`
	// Part makes this one part of the version, if [FeatureParts] was agreed; nil is a whole version. The answer is sent
	// when all parts are published.
	Part *Part `cbor:"9,keyasint,omitempty"`
}

// FeatureConditions is the feature of servers that compare the current version of a name before they change it
// ([Publish].Current, [Withdraw].Current).
const FeatureConditions = "conditions"

// Retention limits the superseded versions of a name that are kept without readers. Zero fields are no limit; without
// any limit none are kept.
type Retention struct {
	// Versions is the maximum number of versions.
	Versions uint64 `cbor:"1,keyasint,omitempty"`
	// Age is the maximum time since a version was superseded.
	Age time.Duration `cbor:"2,keyasint,omitempty"`
	// Bytes is the maximum size of their memory.
	Bytes uint64 `cbor:"3,keyasint,omitempty"`
}

// Rollback publishes the memory of a superseded version as the next version of its name.
type Rollback struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
	// Version is the superseded version; 0 is the newest one that is kept.
	Version uint64 `cbor:"2,keyasint,omitempty"`
}

// Published answers a [Publish] and a [Rollback].
type Published struct {
	// Version is the new version of the name.
	Version uint64 `cbor:"1,keyasint"`
}

// Withdraw removes a name from the catalog. Holders of a version keep it.
type Withdraw struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
	// Current is the number of the version that must be current, if [FeatureConditions] was agreed; nil is no condition.
	Current *uint64 `cbor:"2,keyasint,omitempty"`
}

// Withdrawn answers a [Withdraw].
type Withdrawn struct{}

// List requests the published names. An answer holds as many versions as fit and the position to continue at.
type List struct {
	// After is the name behind which the list continues: Next of the previous answer. Empty for the beginning.
	After string `cbor:"1,keyasint,omitempty"`
	// AfterVersion is NextVersion of the previous answer: the versions of that name continue behind it.
	AfterVersion uint64 `cbor:"2,keyasint,omitempty"`
}

// Listed answers a [List].
type Listed struct {
	// Models holds the names, sorted.
	Models []ModelInfo `cbor:"1,keyasint"`
	// Loading holds the names of which the server loads a version or failed to, sorted. They need not be in Models.
	// They are in the first answer of a list.
	Loading []Loading `cbor:"2,keyasint,omitempty"`
	// Next and NextVersion are the last name and version if there are more, otherwise empty. The next answer may begin
	// with more versions of the same name.
	Next        string `cbor:"3,keyasint,omitempty"`
	NextVersion uint64 `cbor:"4,keyasint,omitempty"`
	// NotAdopted holds the kept versions that the server cannot map, sorted by name and number. They are in the first
	// answer of a list.
	NotAdopted []NotAdopted `cbor:"5,keyasint,omitempty"`
	// Incomplete holds the versions of which some parts are published, sorted by name. They are in the first answer of a
	// list.
	Incomplete []Incomplete `cbor:"6,keyasint,omitempty"`
}

// Incomplete describes a version that waits for parts.
type Incomplete struct {
	// Name is its name.
	Name string `cbor:"1,keyasint"`
	// Of is the number of its parts.
	Of uint64 `cbor:"2,keyasint"`
	// Parts holds the parts that are published, sorted.
	Parts []uint64 `cbor:"3,keyasint"`
	// Bytes is the size of their storages.
	Bytes uint64 `cbor:"4,keyasint,omitempty"`
	// StartedAt is the time of the first part, in nanoseconds since 1970, UTC. At EndsAt the version expires.
	StartedAt int64 `cbor:"5,keyasint,omitempty"`
	EndsAt    int64 `cbor:"6,keyasint,omitempty"`
	// Key is the key of its parts.
	Key string `cbor:"7,keyasint,omitempty"`
}

// NotAdopted describes a version that an earlier server has kept and that this one cannot map. It stays in the store.
type NotAdopted struct {
	// Name is its name.
	Name string `cbor:"1,keyasint"`
	// Version is its number.
	Version uint64 `cbor:"2,keyasint"`
	// Reason describes why it is not adopted.
	Reason string `cbor:"3,keyasint"`
	// Bytes is the size of its storages.
	Bytes uint64 `cbor:"4,keyasint,omitempty"`
	// Withdrawn reports whether its name was withdrawn while it had readers.
	Withdrawn bool `cbor:"5,keyasint,omitempty"`
	// PublishedAt is the time of its publication, in nanoseconds since 1970, UTC.
	PublishedAt int64 `cbor:"6,keyasint,omitempty"`
	// Source is the source of its publication.
	Source string `cbor:"7,keyasint,omitempty"`
}

// Loading describes a version that a server loads and has not published yet.
type Loading struct {
	// Name is the name under which it will be published.
	Name string `cbor:"1,keyasint"`
	// State is the state of loading.
	State LoadState `cbor:"2,keyasint"`
	// Done is the number of bytes loaded.
	Done uint64 `cbor:"3,keyasint,omitempty"`
	// Total is the number of bytes; 0 if unknown.
	Total uint64 `cbor:"4,keyasint,omitempty"`
	// StartedAt is the time when loading began, in nanoseconds since 1970, UTC; 0 before.
	StartedAt int64 `cbor:"5,keyasint,omitempty"`
	// UpdatedAt is the time of Done, or of the failure.
	UpdatedAt int64 `cbor:"6,keyasint,omitempty"`
	// Source is the origin of the tensors, usually a file.
	Source string `cbor:"7,keyasint,omitempty"`
	// Error is the reason of the failure; nil in other states.
	Error *Error `cbor:"8,keyasint,omitempty"`
}

// LoadState is the state of a version that is being loaded.
type LoadState uint8

// The states of loading. Numbers are stable; a client treats an unknown state as LoadRunning.
const (
	// LoadWaiting means that loading has not begun.
	LoadWaiting LoadState = 1
	// LoadRunning means that loading is in progress.
	LoadRunning LoadState = 2
	// LoadFailed means that loading failed. The entry remains until the name is loaded again or published.
	LoadFailed LoadState = 3
)

// String returns "waiting", "loading" or "failed".
func (s LoadState) String() string {
	switch s {
	case LoadWaiting:
		return "waiting"
	case LoadFailed:
		return "failed"
	}
	return "loading"
}

// Info requests information about one name.
type Info struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
	// Version selects the version of the manifest; 0 means the newest.
	Version uint64 `cbor:"2,keyasint,omitempty"`
	// Manifest requests the manifest too.
	Manifest bool `cbor:"3,keyasint,omitempty"`
}

// InfoResult answers an [Info].
type InfoResult struct {
	// Model describes the name.
	Model ModelInfo `cbor:"1,keyasint"`
	// Manifest is the requested manifest, otherwise nil. It takes no lease.
	Manifest *Manifest `cbor:"2,keyasint,omitempty"`
	// Loading is the next version if the server loads one or failed to, otherwise nil.
	Loading *Loading `cbor:"3,keyasint,omitempty"`
}

// ModelInfo describes a published name.
type ModelInfo struct {
	// Name is the name.
	Name string `cbor:"1,keyasint"`
	// Versions holds the versions that still have memory, newest first.
	Versions []VersionInfo `cbor:"2,keyasint"`
	// Withdrawn reports whether there is no current version.
	Withdrawn bool `cbor:"3,keyasint,omitempty"`
	// More is the number of older versions that did not fit.
	More uint64 `cbor:"4,keyasint,omitempty"`
}

// VersionInfo describes one version of a name.
type VersionInfo struct {
	// Version is the version.
	Version uint64 `cbor:"1,keyasint"`
	// Bytes is the size of its memory; each storage counts once.
	Bytes uint64 `cbor:"2,keyasint"`
	// Tensors is the number of names.
	Tensors uint64 `cbor:"3,keyasint"`
	// Current reports whether new readers get this version.
	Current bool `cbor:"4,keyasint,omitempty"`
	// PublishedAt is the time of publication, in nanoseconds since 1970, UTC.
	PublishedAt int64 `cbor:"5,keyasint,omitempty"`
	// Origin is the session that published it.
	Origin Origin `cbor:"6,keyasint"`
	// Holders are the sessions that hold it.
	Holders []Holder `cbor:"7,keyasint,omitempty"`
	// Devices lists the devices of its memory, each once.
	Devices []DeviceInfo `cbor:"8,keyasint,omitempty"`
	// Sessions is the number of holders if Holders is incomplete, otherwise 0.
	Sessions uint64 `cbor:"9,keyasint,omitempty"`
	// Withdrawn reports whether new readers are refused because the name was withdrawn. The name may have newer
	// versions.
	Withdrawn bool `cbor:"10,keyasint,omitempty"`
	// DigestState is the state of the digests that the server computes; 0 if it computes none.
	DigestState DigestState `cbor:"11,keyasint,omitempty"`
	// Digest is the digest of the whole version, 32 bytes, if it is computed.
	Digest []byte `cbor:"12,keyasint,omitempty"`
	// Placements holds its copies on other devices.
	Placements []Placement `cbor:"13,keyasint,omitempty"`
	// Parts is the number of its parts; 0 for a version that was published as a whole.
	Parts uint64 `cbor:"14,keyasint,omitempty"`
}

// Placement describes the copy of a version on another device than that of its publication.
type Placement struct {
	// Device is the device.
	Device DeviceInfo `cbor:"1,keyasint"`
	// Bytes is the size of its memory on the device.
	Bytes uint64 `cbor:"2,keyasint"`
	// Making reports whether the server still copies. Holders then wait for the copy.
	Making bool `cbor:"3,keyasint,omitempty"`
	// MadeAt is the time when the copy was complete, in nanoseconds since 1970, UTC; 0 before.
	MadeAt int64 `cbor:"4,keyasint,omitempty"`
	// Hits counts the requests that found the placement.
	Hits uint64 `cbor:"5,keyasint,omitempty"`
	// Holders is the number of sessions that hold it.
	Holders uint64 `cbor:"6,keyasint,omitempty"`
	// UnusedSince is the time when its last lease ended, in nanoseconds since 1970, UTC; 0 while it is held or made.
	UnusedSince int64 `cbor:"7,keyasint,omitempty"`
}

// Origin is the session that published a version.
type Origin struct {
	// PID is the process.
	PID int32 `cbor:"1,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"2,keyasint,omitempty"`
	// Label is its display name.
	Label string `cbor:"3,keyasint,omitempty"`
	// Source is the origin of the tensors, usually a file.
	Source string `cbor:"4,keyasint,omitempty"`
}

// Holder describes a session that holds a version.
type Holder struct {
	// Session numbers the holder's connection within the server's life.
	Session uint64 `cbor:"1,keyasint"`
	// Leases is the number of its leases on the version.
	Leases uint64 `cbor:"2,keyasint"`
	// PID is the process.
	PID int32 `cbor:"3,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"4,keyasint,omitempty"`
	// Label is its display name.
	Label string `cbor:"5,keyasint,omitempty"`
	// Since is the time of its oldest lease, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"6,keyasint,omitempty"`
	// Placements lists the devices on which it holds placements of the version.
	Placements []UUID `cbor:"7,keyasint,omitempty"`
}

// Watch requests an event for each change of the names, or of all names if the list is empty. The events' frames have
// the ID of this request. The current version of each name is reported first.
type Watch struct {
	// Names lists the names to watch; they need not exist yet.
	Names []string `cbor:"1,keyasint,omitempty"`
}

// Watching answers a [Watch], before its first event.
type Watching struct{}

// Unwatch ends a watch. No event of that watch follows its answer.
type Unwatch struct {
	// Watch is the ID of the watch's request.
	Watch uint64 `cbor:"1,keyasint"`
}

// Unwatched answers an [Unwatch].
type Unwatched struct{}

// EventKind is the kind of an event.
type EventKind uint8

// The kinds of events. Numbers are stable; a client ignores those it does not know.
const (
	// EventPublished is a new current version.
	EventPublished EventKind = 1
	// EventWithdrawn means that a name has no current version.
	EventWithdrawn EventKind = 2
)

// String returns "published", "withdrawn" or "event".
func (k EventKind) String() string {
	switch k {
	case EventPublished:
		return "published"
	case EventWithdrawn:
		return "withdrawn"
	}
	return "event"
}

// Event reports a change to a watch. A slow reader receives fewer events, but no stale ones: of several versions of a
// name only the newest is certain to be reported.
type Event struct {
	// Seq increases with each event of the server; gaps are changes that were not reported.
	Seq uint64 `cbor:"1,keyasint"`
	// Kind is the kind of the event.
	Kind EventKind `cbor:"2,keyasint"`
	// Name is the changed name.
	Name string `cbor:"3,keyasint"`
	// Version is the changed version.
	Version uint64 `cbor:"4,keyasint,omitempty"`
}
