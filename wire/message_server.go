package wire

// ServerInfo answers [OpServerInfo].
type ServerInfo struct {
	// Server is the server's id, Version its program's version, Label its name for people, Socket its path.
	Server  string `cbor:"1,keyasint"`
	Version string `cbor:"2,keyasint,omitempty"`
	Label   string `cbor:"3,keyasint,omitempty"`
	Socket  string `cbor:"4,keyasint,omitempty"`
	// PID and ParentPID are the process.
	PID       int32 `cbor:"5,keyasint,omitempty"`
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
	// Requests and Errors count requests and those that were answered with an error.
	Requests uint64 `cbor:"1,keyasint,omitempty"`
	Errors   uint64 `cbor:"2,keyasint,omitempty"`
	// CacheHits, CacheMisses, CacheJoins and CacheInvalidations count what became of cached calls.
	CacheHits          uint64 `cbor:"3,keyasint,omitempty"`
	CacheMisses        uint64 `cbor:"4,keyasint,omitempty"`
	CacheJoins         uint64 `cbor:"5,keyasint,omitempty"`
	CacheInvalidations uint64 `cbor:"6,keyasint,omitempty"`
	// CacheEntries and CacheBytes are what the cache holds.
	CacheEntries uint64 `cbor:"7,keyasint,omitempty"`
	CacheBytes   uint64 `cbor:"8,keyasint,omitempty"`
	// Inflight is how many results are being made.
	Inflight uint64 `cbor:"9,keyasint,omitempty"`
	// Objects is how many managed objects there are.
	Objects uint64 `cbor:"10,keyasint,omitempty"`
	// TaskSubmissions counts tasks, Tasks is how many are known and TasksRunning how many run.
	TaskSubmissions uint64 `cbor:"11,keyasint,omitempty"`
	Tasks           uint64 `cbor:"12,keyasint,omitempty"`
	TasksRunning    uint64 `cbor:"13,keyasint,omitempty"`
	// Models, Versions, Leases and Watchers are what the catalog holds.
	Models   uint64 `cbor:"14,keyasint,omitempty"`
	Versions uint64 `cbor:"15,keyasint,omitempty"`
	Leases   uint64 `cbor:"16,keyasint,omitempty"`
	Watchers uint64 `cbor:"17,keyasint,omitempty"`
	// BytesOwned is the memory of all versions that are not freed, BytesMapped what sessions hold of it, each for itself.
	BytesOwned  uint64 `cbor:"18,keyasint,omitempty"`
	BytesMapped uint64 `cbor:"19,keyasint,omitempty"`
	// Clients is how many sessions there are.
	Clients uint64 `cbor:"20,keyasint,omitempty"`
}

// EndpointStats is an endpoint and what its runs took, in nanoseconds.
type EndpointStats struct {
	// Name is the endpoint.
	Name string `cbor:"1,keyasint"`
	// Runs and Errors count runs of the function and those that failed.
	Runs   uint64 `cbor:"2,keyasint,omitempty"`
	Errors uint64 `cbor:"3,keyasint,omitempty"`
	// P50, P90 and P99 are within an eighth.
	P50 int64 `cbor:"4,keyasint,omitempty"`
	P90 int64 `cbor:"5,keyasint,omitempty"`
	P99 int64 `cbor:"6,keyasint,omitempty"`
}

// SessionInfo is a client and what it holds.
type SessionInfo struct {
	// Session numbers the connection within the server's life.
	Session uint64 `cbor:"1,keyasint"`
	// PID and UID are the process and its user.
	PID int32  `cbor:"2,keyasint,omitempty"`
	UID uint32 `cbor:"3,keyasint,omitempty"`
	// Label is its name for people.
	Label string `cbor:"4,keyasint,omitempty"`
	// Since is when it connected, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"5,keyasint,omitempty"`
	// Leases is how many it has, on Bytes of memory.
	Leases uint64 `cbor:"6,keyasint,omitempty"`
	Bytes  uint64 `cbor:"7,keyasint,omitempty"`
	// Objects is how many references to managed objects it has.
	Objects uint64 `cbor:"8,keyasint,omitempty"`
	// Requests is how many requests it has in flight, counting those that wait or compute.
	Requests uint64 `cbor:"9,keyasint,omitempty"`
}
