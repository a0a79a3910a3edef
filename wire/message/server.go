package message

// ServerInfo answers [OpServerInfo].
type ServerInfo struct {
	// Server is the server's id.
	Server string `cbor:"1,keyasint"`
	// Version is its program's version.
	Version string `cbor:"2,keyasint,omitempty"`
	// Label is its display name.
	Label string `cbor:"3,keyasint,omitempty"`
	// Socket is the path of its socket.
	Socket string `cbor:"4,keyasint,omitempty"`
	// PID is its process, in its own namespace.
	PID int32 `cbor:"5,keyasint,omitempty"`
	// ParentPID is the process that started it.
	ParentPID int32 `cbor:"6,keyasint,omitempty"`
	// StartedAt is the time of its start, in nanoseconds since 1970, UTC.
	StartedAt int64 `cbor:"7,keyasint,omitempty"`
	// Ready reports whether it accepts requests.
	Ready bool `cbor:"8,keyasint,omitempty"`
	// Devices lists the devices whose memory it shares.
	Devices []DeviceInfo `cbor:"9,keyasint,omitempty"`
	// Stats holds counters since the start and current values.
	Stats ServerStats `cbor:"10,keyasint"`
	// Endpoints holds the endpoints and the durations of their runs.
	Endpoints []EndpointStats `cbor:"11,keyasint,omitempty"`
	// Sessions are the clients.
	Sessions []SessionInfo `cbor:"12,keyasint,omitempty"`
	// Kind is the kind of server.
	Kind string `cbor:"13,keyasint,omitempty"`
	// Running reports whether it has a socket and is not shutting down.
	Running bool `cbor:"14,keyasint,omitempty"`
	// Uptime is the time since its start in nanoseconds, by the monotonic clock.
	Uptime int64 `cbor:"15,keyasint,omitempty"`
	// DeviceIndex is the number in the name of its socket; -1 if there is none.
	DeviceIndex int32 `cbor:"16,keyasint,omitempty"`
	// Capabilities describes what it can share.
	Capabilities Capabilities `cbor:"17,keyasint"`
	// Memory is its memory on each device by purpose.
	Memory []MemoryUse `cbor:"18,keyasint,omitempty"`
	// Limits holds the limits on clients and their current use.
	Limits []LimitUse `cbor:"19,keyasint,omitempty"`
	// Refusals counts the requests and clients that its access policy refused, by right.
	Refusals []Refusals `cbor:"20,keyasint,omitempty"`
	// NotAdopted holds the kept versions that it cannot map, sorted by name and number.
	NotAdopted []NotAdopted `cbor:"21,keyasint,omitempty"`
	// Placements holds the devices on which it makes placements.
	Placements []PlacementDevice `cbor:"22,keyasint,omitempty"`
}

// PlacementDevice describes the placements of a server on one device: the settings, the current use, and counters since
// its start.
type PlacementDevice struct {
	// Device is the device.
	Device DeviceInfo `cbor:"1,keyasint"`
	// Budget limits the bytes of the placements.
	Budget uint64 `cbor:"2,keyasint"`
	// Keep is how long a placement stays without holders, in nanoseconds.
	Keep int64 `cbor:"3,keyasint,omitempty"`
	// Bytes is the size of the placements, including those that are being made.
	Bytes uint64 `cbor:"4,keyasint,omitempty"`
	// Placements is their number.
	Placements uint64 `cbor:"5,keyasint,omitempty"`
	// Hits counts requests that found a placement.
	Hits uint64 `cbor:"6,keyasint,omitempty"`
	// Copies counts placements that were made.
	Copies uint64 `cbor:"7,keyasint,omitempty"`
	// CopiedBytes is the size of those.
	CopiedBytes uint64 `cbor:"8,keyasint,omitempty"`
	// CopyTime is the total duration of their copies in nanoseconds.
	CopyTime int64 `cbor:"9,keyasint,omitempty"`
	// Evictions counts placements without holders that were freed before their time, for lack of room.
	Evictions uint64 `cbor:"10,keyasint,omitempty"`
	// Failures counts placements that could not be made.
	Failures uint64 `cbor:"11,keyasint,omitempty"`
}

// Refusals counts refusals of one right.
type Refusals struct {
	// Right is the right that the clients lacked.
	Right string `cbor:"1,keyasint"`
	// Count is the number of refusals.
	Count uint64 `cbor:"2,keyasint"`
}

// LimitUse is one limit and its current use.
type LimitUse struct {
	// Name is the limit's name, which includes the unit.
	Name string `cbor:"1,keyasint"`
	// Client limits one client; 0 means no such limit.
	Client int64 `cbor:"2,keyasint,omitempty"`
	// All limits all clients together; 0 means no such limit.
	All int64 `cbor:"3,keyasint,omitempty"`
	// Most is the highest use by one client, if it is counted by client.
	Most int64 `cbor:"4,keyasint,omitempty"`
	// Used is the use by all clients.
	Used int64 `cbor:"5,keyasint,omitempty"`
	// Refused counts refusals, drops and disconnections because of it.
	Refused uint64 `cbor:"6,keyasint,omitempty"`
	// Reason is the origin of the limit for display, unless it is a rule of the protocol.
	Reason string `cbor:"7,keyasint,omitempty"`
}

// Capabilities describes what a server can share.
type Capabilities struct {
	// Transport is the transport of memory and messages.
	Transport string `cbor:"1,keyasint,omitempty"`
	// Handles lists the kinds of handle that its devices support.
	Handles []HandleSupport `cbor:"2,keyasint,omitempty"`
}

// HandleSupport reports whether a kind of handle works on a device of the server.
type HandleSupport struct {
	// Device is the device.
	Device UUID `cbor:"1,keyasint"`
	// Kind is the kind of handle.
	Kind string `cbor:"2,keyasint"`
	// Supported reports whether it works.
	Supported bool `cbor:"3,keyasint,omitempty"`
	// Reason is why it does not work.
	Reason string `cbor:"4,keyasint,omitempty"`
}

// MemoryUse is memory of one device for one purpose. Memory with two purposes is counted once, for the first in the
// order of Use.
type MemoryUse struct {
	// Device is the device.
	Device UUID `cbor:"1,keyasint"`
	// Type is its DLPack type.
	Type int32 `cbor:"2,keyasint"`
	// Use is "models", "placements", "objects", "results" for cached results, or "tasks" for results of tasks.
	Use string `cbor:"3,keyasint"`
	// Bytes is the size.
	Bytes uint64 `cbor:"4,keyasint,omitempty"`
	// Storages is the number of storages.
	Storages uint64 `cbor:"5,keyasint,omitempty"`
}

// ServerStats are a server's counters and numbers.
type ServerStats struct {
	// Requests counts requests.
	Requests uint64 `cbor:"1,keyasint,omitempty"`
	// Errors counts requests that were answered with an error.
	Errors uint64 `cbor:"2,keyasint,omitempty"`
	// CacheHits counts cached calls whose result existed.
	CacheHits uint64 `cbor:"3,keyasint,omitempty"`
	// CacheMisses counts cached calls that started a run.
	CacheMisses uint64 `cbor:"4,keyasint,omitempty"`
	// CacheJoins counts calls that waited for a run of another call.
	CacheJoins uint64 `cbor:"5,keyasint,omitempty"`
	// CacheInvalidations counts invalidated results.
	CacheInvalidations uint64 `cbor:"6,keyasint,omitempty"`
	// CacheEntries is the number of cached results.
	CacheEntries uint64 `cbor:"7,keyasint,omitempty"`
	// CacheBytes is their size, including tensors.
	CacheBytes uint64 `cbor:"8,keyasint,omitempty"`
	// Inflight is the number of cached results in progress.
	Inflight uint64 `cbor:"9,keyasint,omitempty"`
	// Objects is the number of managed objects.
	Objects uint64 `cbor:"10,keyasint,omitempty"`
	// TaskSubmissions counts tasks.
	TaskSubmissions uint64 `cbor:"11,keyasint,omitempty"`
	// Tasks is the number of known tasks, including finished ones.
	Tasks uint64 `cbor:"12,keyasint,omitempty"`
	// TasksRunning is the number of running tasks.
	TasksRunning uint64 `cbor:"13,keyasint,omitempty"`
	// Models is the number of names that can be acquired.
	Models uint64 `cbor:"14,keyasint,omitempty"`
	// Versions is the number of versions whose memory is not freed.
	Versions uint64 `cbor:"15,keyasint,omitempty"`
	// Leases is the number of leases on them.
	Leases uint64 `cbor:"16,keyasint,omitempty"`
	// Watchers is the number of subscriptions to events, one for each lease and watch.
	Watchers uint64 `cbor:"17,keyasint,omitempty"`
	// BytesOwned is the memory of versions, objects, results and tasks, each counted once.
	BytesOwned uint64 `cbor:"18,keyasint,omitempty"`
	// BytesMapped is the sum of the memory held by each client.
	BytesMapped uint64 `cbor:"19,keyasint,omitempty"`
	// Clients is the number of sessions, excluding the server's own.
	Clients uint64 `cbor:"20,keyasint,omitempty"`
	// CachedObjects is the number of objects in the cache.
	CachedObjects uint64 `cbor:"21,keyasint,omitempty"`
	// CacheFailures counts failed runs for the cache.
	CacheFailures uint64 `cbor:"22,keyasint,omitempty"`
	// CacheEvictions counts results evicted for lack of room.
	CacheEvictions uint64 `cbor:"23,keyasint,omitempty"`
	// CacheExpirations counts results that expired.
	CacheExpirations uint64 `cbor:"24,keyasint,omitempty"`
	// TasksPending is the number of tasks that wait for a worker.
	TasksPending uint64 `cbor:"25,keyasint,omitempty"`
	// TasksCompleted counts tasks that ended with a result.
	TasksCompleted uint64 `cbor:"26,keyasint,omitempty"`
	// TasksFailed counts tasks that failed.
	TasksFailed uint64 `cbor:"27,keyasint,omitempty"`
	// TasksCancelled counts tasks that were cancelled.
	TasksCancelled uint64 `cbor:"28,keyasint,omitempty"`
	// TasksExpired counts finished tasks that expired.
	TasksExpired uint64 `cbor:"29,keyasint,omitempty"`
	// SlabsReused counts results in reused slabs.
	SlabsReused uint64 `cbor:"30,keyasint,omitempty"`
	// SlabsFresh counts results in new slabs.
	SlabsFresh uint64 `cbor:"31,keyasint,omitempty"`
	// SlabsRefused counts results without a slab because of a limit.
	SlabsRefused uint64 `cbor:"32,keyasint,omitempty"`
	// PoolSlabs is the number of slabs that the pools of the server's process keep for future publications.
	PoolSlabs uint64 `cbor:"33,keyasint,omitempty"`
	// PoolBytes is their size.
	PoolBytes uint64 `cbor:"34,keyasint,omitempty"`
	// PoolReused counts allocations of the pools in reused memory.
	PoolReused uint64 `cbor:"35,keyasint,omitempty"`
	// PoolFresh counts allocations of the pools in new memory.
	PoolFresh uint64 `cbor:"36,keyasint,omitempty"`
	// PoolBusy counts allocations in new memory although a slab of the size existed that was still in use.
	PoolBusy uint64 `cbor:"37,keyasint,omitempty"`
}

// EndpointStats holds the counters of an endpoint and the durations of its runs in nanoseconds.
type EndpointStats struct {
	// Name is the endpoint.
	Name string `cbor:"1,keyasint"`
	// Runs counts runs of the function.
	Runs uint64 `cbor:"2,keyasint,omitempty"`
	// Errors counts runs that failed.
	Errors uint64 `cbor:"3,keyasint,omitempty"`
	// P50 is the median duration, to within an eighth.
	P50 int64 `cbor:"4,keyasint,omitempty"`
	// P90 is the 90th percentile.
	P90 int64 `cbor:"5,keyasint,omitempty"`
	// P99 is the 99th percentile.
	P99 int64 `cbor:"6,keyasint,omitempty"`
	// Calls counts its calls, including tasks and streams.
	Calls uint64 `cbor:"7,keyasint,omitempty"`
	// CacheHits counts calls answered by an existing result or by the run of another call.
	CacheHits uint64 `cbor:"8,keyasint,omitempty"`
	// Failures counts calls that ended with an error.
	Failures uint64 `cbor:"9,keyasint,omitempty"`
	// Total is the total duration of all runs.
	Total int64 `cbor:"10,keyasint,omitempty"`
	// Uncached counts calls that were not cached because an argument was in memory that may still be written.
	Uncached uint64 `cbor:"11,keyasint,omitempty"`
	// Workers is the number of clients that run the function; 0 for an endpoint of the server.
	Workers uint64 `cbor:"12,keyasint,omitempty"`
	// Durations counts runs by duration. Element i counts those below 8,192·2^i ns that no earlier element counts, and the
	// element with index 24 all longer ones. Zeros at the end are left out.
	Durations []uint64 `cbor:"13,keyasint,omitempty"`
}

// DurationCounts is the maximum length of [EndpointStats.Durations].
const DurationCounts = 25

// SessionInfo describes a client and its resources.
type SessionInfo struct {
	// Session numbers the connection within the server's life.
	Session uint64 `cbor:"1,keyasint"`
	// PID is the process, as reported by the kernel.
	PID int32 `cbor:"2,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"3,keyasint,omitempty"`
	// Label is its display name.
	Label string `cbor:"4,keyasint,omitempty"`
	// Since is when it connected, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"5,keyasint,omitempty"`
	// Leases is the number of its leases.
	Leases uint64 `cbor:"6,keyasint,omitempty"`
	// Bytes is the memory of its leases and references, each storage counted once.
	Bytes uint64 `cbor:"7,keyasint,omitempty"`
	// Objects is the number of its references to managed objects.
	Objects uint64 `cbor:"8,keyasint,omitempty"`
	// Requests is the number of its requests in flight that wait or compute.
	Requests uint64 `cbor:"9,keyasint,omitempty"`
	// Self reports whether it is the server's own process.
	Self bool `cbor:"10,keyasint,omitempty"`
	// References lists the objects that it refers to, largest first, possibly incomplete.
	References []Reference `cbor:"11,keyasint,omitempty"`
	// Offers is the number of endpoints that it offers.
	Offers uint64 `cbor:"12,keyasint,omitempty"`
}

// Reference describes the references of a session to a managed object.
type Reference struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
	// Endpoint is the endpoint that created it.
	Endpoint string `cbor:"2,keyasint,omitempty"`
	// Refs is the number of references.
	Refs uint64 `cbor:"3,keyasint,omitempty"`
	// Bytes is the size of its memory and encoding.
	Bytes uint64 `cbor:"4,keyasint,omitempty"`
}
