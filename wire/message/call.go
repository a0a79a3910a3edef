package message

// Call requests a run of an endpoint: the body of [OpCall], [OpSubmit], [OpStream] and [OpInvalidateCall]. Its frame
// carries the descriptors that Handles name.
type Call struct {
	// Endpoint is the endpoint's name.
	Endpoint string `cbor:"1,keyasint"`
	// Args are the arguments: one CBOR item, which may contain [TagTensor] and [TagStateDict].
	Args RawMessage `cbor:"2,keyasint,omitempty"`
	// Handles are the storages that the arguments refer to.
	Handles []Handle `cbor:"3,keyasint,omitempty"`
	// SlabsReturned lists result slabs that the client no longer uses and keeps mapped: the owner may reuse them. They
	// are returned before the call is processed, whatever its outcome.
	SlabsReturned []uint64 `cbor:"4,keyasint,omitempty"`
	// SlabsDropped lists result slabs that must not be reused. The client no longer maps them under these numbers.
	SlabsDropped []uint64 `cbor:"5,keyasint,omitempty"`
	// Label is kept with the task of [OpSubmit] if [FeatureTaskLabels] was agreed ([TaskInfo].Label). It has at most
	// [MaxTaskLabel] bytes. Other operations ignore it.
	Label string `cbor:"6,keyasint,omitempty"`
}

// ReturnSlabs returns slabs without a call. Both lists are those of [Call].
type ReturnSlabs struct {
	// Returned lists slabs that the owner may reuse.
	Returned []uint64 `cbor:"1,keyasint,omitempty"`
	// Dropped lists slabs that must not be reused.
	Dropped []uint64 `cbor:"2,keyasint,omitempty"`
}

// SlabsReturned answers [OpReturnSlabs].
type SlabsReturned struct{}

// SlabsGone lists returned slabs that will not be reused; the client unmaps them. It is the body of an event frame with
// ID 0.
type SlabsGone struct {
	// Slabs holds their numbers.
	Slabs []uint64 `cbor:"1,keyasint"`
}

// Returned answers [OpCall] and [OpTaskResult]. Its frame carries the descriptors that Handles name.
type Returned struct {
	// Value is the result: one CBOR item, which may contain [TagTensor] and [TagStateDict].
	Value RawMessage `cbor:"1,keyasint,omitempty"`
	// Handles are the storages that the result refers to.
	Handles []Handle `cbor:"2,keyasint,omitempty"`
	// Object names the managed object of the value, to which the session got one more reference; nil for other results.
	Object *ObjectRef `cbor:"3,keyasint,omitempty"`
	// Cached reports whether the result came from the cache.
	Cached bool `cbor:"4,keyasint,omitempty"`
}

// ObjectRef names a managed object and a reference to it.
type ObjectRef struct {
	// ID is the object, unique within the server's life.
	ID string `cbor:"1,keyasint"`
	// Server is the id of the server that holds it.
	Server string `cbor:"2,keyasint"`
	// Token is the reference that the session got with the answer, unique within the server's life. 0 from a server
	// without tokens.
	Token uint64 `cbor:"3,keyasint,omitempty"`
}

// Endpoints requests the list of endpoints.
type Endpoints struct{}

// EndpointsListed answers [OpEndpoints].
type EndpointsListed struct {
	// Endpoints is sorted by name.
	Endpoints []EndpointInfo `cbor:"1,keyasint"`
}

// EndpointInfo describes an endpoint.
type EndpointInfo struct {
	// Name is its name.
	Name string `cbor:"1,keyasint"`
	// Task reports whether calls of it run as tasks.
	Task bool `cbor:"2,keyasint,omitempty"`
	// Managed reports whether its results are managed objects.
	Managed bool `cbor:"3,keyasint,omitempty"`
	// Stream reports whether its results are a stream.
	Stream bool `cbor:"4,keyasint,omitempty"`
	// Cache reports whether its results are cached.
	Cache bool `cbor:"5,keyasint,omitempty"`
	// CacheKey is the template of the cache key; empty if all arguments form the key.
	CacheKey string `cbor:"6,keyasint,omitempty"`
	// SingleFlight reports whether concurrent equal calls share one run.
	SingleFlight bool `cbor:"7,keyasint,omitempty"`
	// Serialized reports whether runs wait for each other.
	Serialized bool `cbor:"8,keyasint,omitempty"`
	// Timeout limits a run, in nanoseconds; 0 means no limit.
	Timeout int64 `cbor:"9,keyasint,omitempty"`
	// In is the Go type of its arguments, for display.
	In string `cbor:"10,keyasint,omitempty"`
	// Out is the Go type of its results, for display.
	Out string `cbor:"11,keyasint,omitempty"`
	// InFields describes the fields of its arguments if they are a map with fixed keys.
	InFields []FieldInfo `cbor:"12,keyasint,omitempty"`
	// OutFields describes the fields of its results.
	OutFields []FieldInfo `cbor:"13,keyasint,omitempty"`
	// Uncached counts calls that were not cached because an argument was in memory that may still be written.
	Uncached uint64 `cbor:"14,keyasint,omitempty"`
	// Workers lists the clients that run its function by [OpOffer]; empty for an endpoint of the server.
	Workers []EndpointWorker `cbor:"15,keyasint,omitempty"`
	// Writable reports whether its function may write to the tensors of its arguments, whose memory must then be
	// writable.
	Writable bool `cbor:"16,keyasint,omitempty"`
	// InTensor and OutTensor declare a tensor that is the whole argument or result, such as "float32[-1,3]".
	InTensor  string `cbor:"17,keyasint,omitempty"`
	OutTensor string `cbor:"18,keyasint,omitempty"`
	// BatchMax is the maximum number of requests that a caller may join into one call along the first dimension of the
	// tensors; 0 for none.
	BatchMax uint64 `cbor:"19,keyasint,omitempty"`
	// BatchDelay is how long a request may wait for others, in nanoseconds.
	BatchDelay int64 `cbor:"20,keyasint,omitempty"`
}

// EndpointWorker is a client that runs the function of an endpoint.
type EndpointWorker struct {
	// Session is its connection.
	Session uint64 `cbor:"1,keyasint"`
	// PID is the process, as reported by the kernel.
	PID int32 `cbor:"2,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"3,keyasint,omitempty"`
	// Label is its display name.
	Label string `cbor:"4,keyasint,omitempty"`
	// Running is the number of its unanswered calls, of all endpoints that it offers.
	Running uint64 `cbor:"5,keyasint,omitempty"`
	// Most is the maximum number of concurrent calls.
	Most uint64 `cbor:"6,keyasint,omitempty"`
	// Since is when it connected, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"7,keyasint,omitempty"`
}

// FieldInfo describes a field of a map with fixed keys, which is a Go struct.
type FieldInfo struct {
	// Name is the key.
	Name string `cbor:"1,keyasint"`
	// Type is the Go type, for display.
	Type string `cbor:"2,keyasint,omitempty"`
	// Optional reports whether it may be omitted.
	Optional bool `cbor:"3,keyasint,omitempty"`
	// Fields describes the fields of its values or their elements if those are maps with fixed keys.
	Fields []FieldInfo `cbor:"4,keyasint,omitempty"`
	// Tensor is the declared type of a tensor: its dtype, the sizes of its dimensions in brackets with -1 for any size,
	// or both, such as "float32[-1,3]".
	Tensor string `cbor:"5,keyasint,omitempty"`
}

// StreamItem is one result of a stream: the body of an event frame with the ID of the stream's request, whose
// descriptors Handles name.
type StreamItem struct {
	// Value is the result: one CBOR item, which may contain [TagTensor] and [TagStateDict].
	Value RawMessage `cbor:"1,keyasint,omitempty"`
	// Handles are the storages that the result refers to.
	Handles []Handle `cbor:"2,keyasint,omitempty"`
}

// StreamWindow is the number of items that a server may send before the client allows more.
const StreamWindow = 16

// StreamMore allows more items of a stream.
type StreamMore struct {
	// Stream is the ID of the stream's request.
	Stream uint64 `cbor:"1,keyasint"`
	// Items is the number of further items.
	Items uint64 `cbor:"2,keyasint"`
}

// StreamMoreDone answers [OpStreamMore].
type StreamMoreDone struct{}
