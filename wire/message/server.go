package message

// ServerInfo answers [OpServerInfo].
type ServerInfo struct {
	// Server is the server's id.
	Server string `cbor:"1,keyasint"`
	// Version is its program's version.
	Version string `cbor:"2,keyasint,omitempty"`
	// Label is its name for people.
	Label string `cbor:"3,keyasint,omitempty"`
	// Socket is the path that it listens on.
	Socket string `cbor:"4,keyasint,omitempty"`
	// PID is its process, in its own namespace.
	PID int32 `cbor:"5,keyasint,omitempty"`
	// ParentPID is the process that started it.
	ParentPID int32 `cbor:"6,keyasint,omitempty"`
	// StartedAt is when it began, in nanoseconds since 1970, UTC.
	StartedAt int64 `cbor:"7,keyasint,omitempty"`
	// Ready tells that it accepts requests.
	Ready bool `cbor:"8,keyasint,omitempty"`
	// Devices are those that it shares memory of.
	Devices []DeviceInfo `cbor:"9,keyasint,omitempty"`
	// Stats are counters since the start and numbers of this moment.
	Stats ServerStats `cbor:"10,keyasint"`
	// Endpoints are the endpoints with what their runs took.
	Endpoints []EndpointStats `cbor:"11,keyasint,omitempty"`
	// Sessions are the clients.
	Sessions []SessionInfo `cbor:"12,keyasint,omitempty"`
	// Kind is what sort of server it is.
	Kind string `cbor:"13,keyasint,omitempty"`
	// Running tells that it has a socket and is not shutting down.
	Running bool `cbor:"14,keyasint,omitempty"`
	// Uptime is how long it has been there, in nanoseconds, whatever was done to the clock.
	Uptime int64 `cbor:"15,keyasint,omitempty"`
	// DeviceIndex is the number in the name of its socket; -1 where that has none.
	DeviceIndex int32 `cbor:"16,keyasint,omitempty"`
	// Capabilities are what it can share, and how.
	Capabilities Capabilities `cbor:"17,keyasint"`
	// Memory is what it has of each device for each purpose.
	Memory []MemoryUse `cbor:"18,keyasint,omitempty"`
	// Limits are the bounds on what clients can make it hold and do, and what is in use of them.
	Limits []LimitUse `cbor:"19,keyasint,omitempty"`
}

// LimitUse is one bound on what clients can make the server hold or do.
type LimitUse struct {
	// Name names it; the unit is part of the name.
	Name string `cbor:"1,keyasint"`
	// Client bounds one client; 0 for no such bound.
	Client int64 `cbor:"2,keyasint,omitempty"`
	// All bounds all clients together; 0 for no such bound.
	All int64 `cbor:"3,keyasint,omitempty"`
	// Most is the most that one client has, where it is counted by client.
	Most int64 `cbor:"4,keyasint,omitempty"`
	// Used is what all have together.
	Used int64 `cbor:"5,keyasint,omitempty"`
	// Refused counts what was refused, dropped or cut off because of it.
	Refused uint64 `cbor:"6,keyasint,omitempty"`
	// Reason is where the bound comes from, for people, where that is not a rule of the protocol.
	Reason string `cbor:"7,keyasint,omitempty"`
}

// Capabilities are what a server can share, and how.
type Capabilities struct {
	// Transport is how memory and messages travel.
	Transport string `cbor:"1,keyasint,omitempty"`
	// Handles are the kinds of handle that its devices know.
	Handles []HandleSupport `cbor:"2,keyasint,omitempty"`
}

// HandleSupport reports whether a kind of handle works on a device of the server.
type HandleSupport struct {
	// Device is the device.
	Device UUID `cbor:"1,keyasint"`
	// Kind is the kind of handle.
	Kind string `cbor:"2,keyasint"`
	// Supported tells that memory can be shared by it.
	Supported bool `cbor:"3,keyasint,omitempty"`
	// Reason is why not.
	Reason string `cbor:"4,keyasint,omitempty"`
}

// MemoryUse is memory of one device that the server has for one purpose. No memory is counted twice: what serves two
// purposes is counted for the first in the order in which they are named here.
type MemoryUse struct {
	// Device is the device.
	Device UUID `cbor:"1,keyasint"`
	// Type is its DLPack type.
	Type int32 `cbor:"2,keyasint"`
	// Use is "models", "objects", "results" for what is cached, or "tasks" for what tasks keep.
	Use string `cbor:"3,keyasint"`
	// Bytes is the size.
	Bytes uint64 `cbor:"4,keyasint,omitempty"`
	// Storages is how many pieces it is.
	Storages uint64 `cbor:"5,keyasint,omitempty"`
}

// ServerStats are a server's counters and numbers.
type ServerStats struct {
	// Requests counts requests.
	Requests uint64 `cbor:"1,keyasint,omitempty"`
	// Errors counts requests that were answered with an error.
	Errors uint64 `cbor:"2,keyasint,omitempty"`
	// CacheHits counts results that were found.
	CacheHits uint64 `cbor:"3,keyasint,omitempty"`
	// CacheMisses counts results that had to be made.
	CacheMisses uint64 `cbor:"4,keyasint,omitempty"`
	// CacheJoins counts calls that waited for a result that another had begun to make.
	CacheJoins uint64 `cbor:"5,keyasint,omitempty"`
	// CacheInvalidations counts results that somebody dropped.
	CacheInvalidations uint64 `cbor:"6,keyasint,omitempty"`
	// CacheEntries is how many results the cache holds.
	CacheEntries uint64 `cbor:"7,keyasint,omitempty"`
	// CacheBytes is how many bytes they have, tensors included.
	CacheBytes uint64 `cbor:"8,keyasint,omitempty"`
	// Inflight is how many results are being made.
	Inflight uint64 `cbor:"9,keyasint,omitempty"`
	// Objects is how many managed objects there are.
	Objects uint64 `cbor:"10,keyasint,omitempty"`
	// TaskSubmissions counts tasks.
	TaskSubmissions uint64 `cbor:"11,keyasint,omitempty"`
	// Tasks is how many tasks are known, finished ones included.
	Tasks uint64 `cbor:"12,keyasint,omitempty"`
	// TasksRunning is how many run.
	TasksRunning uint64 `cbor:"13,keyasint,omitempty"`
	// Models is how many names can be acquired.
	Models uint64 `cbor:"14,keyasint,omitempty"`
	// Versions is how many versions have memory that is not freed.
	Versions uint64 `cbor:"15,keyasint,omitempty"`
	// Leases is how many leases there are on them.
	Leases uint64 `cbor:"16,keyasint,omitempty"`
	// Watchers is how many subscriptions to events there are, one for each lease and watch.
	Watchers uint64 `cbor:"17,keyasint,omitempty"`
	// BytesOwned is the memory of versions, objects, results and tasks, each counted once.
	BytesOwned uint64 `cbor:"18,keyasint,omitempty"`
	// BytesMapped is what clients hold of it, each for itself.
	BytesMapped uint64 `cbor:"19,keyasint,omitempty"`
	// Clients is how many sessions there are, the server's own left out.
	Clients uint64 `cbor:"20,keyasint,omitempty"`
	// CachedObjects is how many of the objects are found in the cache.
	CachedObjects uint64 `cbor:"21,keyasint,omitempty"`
	// CacheFailures counts runs for the cache that failed.
	CacheFailures uint64 `cbor:"22,keyasint,omitempty"`
	// CacheEvictions counts results that the cache had no room for.
	CacheEvictions uint64 `cbor:"23,keyasint,omitempty"`
	// CacheExpirations counts results that were too old.
	CacheExpirations uint64 `cbor:"24,keyasint,omitempty"`
	// TasksPending is how many tasks wait for a worker.
	TasksPending uint64 `cbor:"25,keyasint,omitempty"`
	// TasksCompleted counts tasks that ended with a result.
	TasksCompleted uint64 `cbor:"26,keyasint,omitempty"`
	// TasksFailed counts tasks that failed.
	TasksFailed uint64 `cbor:"27,keyasint,omitempty"`
	// TasksCancelled counts tasks that were cancelled.
	TasksCancelled uint64 `cbor:"28,keyasint,omitempty"`
	// TasksExpired counts tasks that had ended and were too old to be kept.
	TasksExpired uint64 `cbor:"29,keyasint,omitempty"`
	// SlabsReused counts results in slabs that were used before.
	SlabsReused uint64 `cbor:"30,keyasint,omitempty"`
	// SlabsFresh counts results in new slabs.
	SlabsFresh uint64 `cbor:"31,keyasint,omitempty"`
	// SlabsRefused counts results for which there was no room among the slabs.
	SlabsRefused uint64 `cbor:"32,keyasint,omitempty"`
	// PoolSlabs is how many pieces of memory the pools of the server's process keep for publications to come.
	PoolSlabs uint64 `cbor:"33,keyasint,omitempty"`
	// PoolBytes is their size.
	PoolBytes uint64 `cbor:"34,keyasint,omitempty"`
	// PoolReused counts allocations of the pools in memory that was used before.
	PoolReused uint64 `cbor:"35,keyasint,omitempty"`
	// PoolFresh counts those in new memory.
	PoolFresh uint64 `cbor:"36,keyasint,omitempty"`
	// PoolBusy counts those of the fresh for which there was memory that somebody still had.
	PoolBusy uint64 `cbor:"37,keyasint,omitempty"`
}

// EndpointStats is an endpoint, how it was called, and what its runs took, in nanoseconds.
type EndpointStats struct {
	// Name is the endpoint.
	Name string `cbor:"1,keyasint"`
	// Runs counts runs of the function.
	Runs uint64 `cbor:"2,keyasint,omitempty"`
	// Errors counts runs that failed.
	Errors uint64 `cbor:"3,keyasint,omitempty"`
	// P50 is the time within which half of the runs were, to an eighth.
	P50 int64 `cbor:"4,keyasint,omitempty"`
	// P90 is the same for nine in ten.
	P90 int64 `cbor:"5,keyasint,omitempty"`
	// P99 is the same for 99 in a hundred.
	P99 int64 `cbor:"6,keyasint,omitempty"`
	// Calls counts calls of it, submitted tasks and streams included.
	Calls uint64 `cbor:"7,keyasint,omitempty"`
	// CacheHits counts calls with a result that was there, or that another call's run made.
	CacheHits uint64 `cbor:"8,keyasint,omitempty"`
	// Failures counts calls that ended with an error.
	Failures uint64 `cbor:"9,keyasint,omitempty"`
	// Total is what all runs took together.
	Total int64 `cbor:"10,keyasint,omitempty"`
	// Uncached counts calls that would have been cached, had not an argument been in memory that may still be written.
	Uncached uint64 `cbor:"11,keyasint,omitempty"`
	// Workers is how many clients run the function; 0 for an endpoint of the server's own.
	Workers uint64 `cbor:"12,keyasint,omitempty"`
}

// SessionInfo is a client and what it holds.
type SessionInfo struct {
	// Session numbers the connection within the server's life.
	Session uint64 `cbor:"1,keyasint"`
	// PID is the process, as the kernel told it to the server.
	PID int32 `cbor:"2,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"3,keyasint,omitempty"`
	// Label is its name for people.
	Label string `cbor:"4,keyasint,omitempty"`
	// Since is when it connected, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"5,keyasint,omitempty"`
	// Leases is how many leases it has.
	Leases uint64 `cbor:"6,keyasint,omitempty"`
	// Bytes is the memory that its leases and references are on, each piece counted once.
	Bytes uint64 `cbor:"7,keyasint,omitempty"`
	// Objects is how many references to managed objects it has.
	Objects uint64 `cbor:"8,keyasint,omitempty"`
	// Requests is how many requests it has in flight, counting those that wait or compute.
	Requests uint64 `cbor:"9,keyasint,omitempty"`
	// Self tells that it is the server's own process, which needs no connection.
	Self bool `cbor:"10,keyasint,omitempty"`
	// References are the objects that it refers to, the largest first; not all where those are many.
	References []Reference `cbor:"11,keyasint,omitempty"`
	// Offers is how many endpoints it offers.
	Offers uint64 `cbor:"12,keyasint,omitempty"`
}

// Reference is a session's hold on a managed object.
type Reference struct {
	// ID is the object.
	ID string `cbor:"1,keyasint"`
	// Endpoint is what made it.
	Endpoint string `cbor:"2,keyasint,omitempty"`
	// Refs is how many references the session has to it.
	Refs uint64 `cbor:"3,keyasint,omitempty"`
	// Bytes is the size of its memory and encoding.
	Bytes uint64 `cbor:"4,keyasint,omitempty"`
}
