package wire

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
	// BytesOwned is the memory of all versions that are not freed.
	BytesOwned uint64 `cbor:"18,keyasint,omitempty"`
	// BytesMapped is what sessions hold of it, each for itself.
	BytesMapped uint64 `cbor:"19,keyasint,omitempty"`
	// Clients is how many sessions there are.
	Clients uint64 `cbor:"20,keyasint,omitempty"`
}

// EndpointStats is an endpoint and what its runs took, in nanoseconds.
type EndpointStats struct {
	// Name is the endpoint.
	Name string `cbor:"1,keyasint"`
	// Runs counts runs of the function.
	Runs uint64 `cbor:"2,keyasint,omitempty"`
	// Errors counts those that failed.
	Errors uint64 `cbor:"3,keyasint,omitempty"`
	// P50 is the time within which half of the runs were, to an eighth.
	P50 int64 `cbor:"4,keyasint,omitempty"`
	// P90 is the same for nine in ten.
	P90 int64 `cbor:"5,keyasint,omitempty"`
	// P99 is the same for 99 in a hundred.
	P99 int64 `cbor:"6,keyasint,omitempty"`
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
	// Bytes is the memory that they are on, each version counted once.
	Bytes uint64 `cbor:"7,keyasint,omitempty"`
	// Objects is how many references to managed objects it has.
	Objects uint64 `cbor:"8,keyasint,omitempty"`
	// Requests is how many requests it has in flight, counting those that wait or compute.
	Requests uint64 `cbor:"9,keyasint,omitempty"`
}
