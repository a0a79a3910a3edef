package message

// Call asks for an endpoint's work: the body of [OpCall], [OpSubmit], [OpStream] and [OpInvalidateCall]. Its frame
// carries the descriptors that Handles name.
type Call struct {
	// Endpoint is the endpoint's name.
	Endpoint string `cbor:"1,keyasint"`
	// Args are the arguments: one CBOR item, in which [TagTensor] and [TagStateDict] may stand.
	Args RawMessage `cbor:"2,keyasint,omitempty"`
	// Handles are the storages that the arguments refer to.
	Handles []Handle `cbor:"3,keyasint,omitempty"`
	// SlabsReturned are slabs of results that the client has no more use of and keeps mapped: the owner may use them
	// again. They are given back before the call is looked at, whatever becomes of it.
	SlabsReturned []uint64 `cbor:"4,keyasint,omitempty"`
	// SlabsDropped are slabs of results that must not be used again. The client does not have them mapped under these
	// numbers any more.
	SlabsDropped []uint64 `cbor:"5,keyasint,omitempty"`
}

// ReturnSlabs gives slabs back without a call: the two lists are those of [Call].
type ReturnSlabs struct {
	// Returned are slabs that the owner may use again.
	Returned []uint64 `cbor:"1,keyasint,omitempty"`
	// Dropped are slabs that must not be used again.
	Dropped []uint64 `cbor:"2,keyasint,omitempty"`
}

// SlabsReturned answers [OpReturnSlabs].
type SlabsReturned struct{}

// SlabsGone tells a client of slabs that it returned and that are not used again: it unmaps them. It is the body of an
// event frame with the ID 0.
type SlabsGone struct {
	// Slabs are their numbers.
	Slabs []uint64 `cbor:"1,keyasint"`
}

// Returned answers [OpCall] and [OpTaskResult]. Its frame carries the descriptors that Handles name.
type Returned struct {
	// Value is the result: one CBOR item, in which [TagTensor] and [TagStateDict] may stand.
	Value RawMessage `cbor:"1,keyasint,omitempty"`
	// Handles are the storages that the result refers to.
	Handles []Handle `cbor:"2,keyasint,omitempty"`
	// Object names the managed object that the value is, of which the session has one reference more; nil for others.
	Object *ObjectRef `cbor:"3,keyasint,omitempty"`
	// Cached tells that the result had been made before.
	Cached bool `cbor:"4,keyasint,omitempty"`
}

// ObjectRef names a managed object.
type ObjectRef struct {
	// ID is the object, within the server's life.
	ID string `cbor:"1,keyasint"`
	// Server is the server that has it.
	Server string `cbor:"2,keyasint"`
	// Token is the reference that the session got with the answer: another one for each, within the server's life. 0
	// from a server that does not tell its references apart.
	Token uint64 `cbor:"3,keyasint,omitempty"`
}

// Endpoints asks which endpoints there are.
type Endpoints struct{}

// EndpointsListed answers [OpEndpoints].
type EndpointsListed struct {
	// Endpoints are they, sorted by name.
	Endpoints []EndpointInfo `cbor:"1,keyasint"`
}

// EndpointInfo describes an endpoint.
type EndpointInfo struct {
	// Name is its name.
	Name string `cbor:"1,keyasint"`
	// Task tells that calls of it run as tasks.
	Task bool `cbor:"2,keyasint,omitempty"`
	// Managed tells that its results are managed objects.
	Managed bool `cbor:"3,keyasint,omitempty"`
	// Stream tells that its results are a stream.
	Stream bool `cbor:"4,keyasint,omitempty"`
	// Cache tells that its results are cached.
	Cache bool `cbor:"5,keyasint,omitempty"`
	// CacheKey is the template of the cache key; empty for a key of all arguments.
	CacheKey string `cbor:"6,keyasint,omitempty"`
	// SingleFlight tells that equal calls at the same time share one run.
	SingleFlight bool `cbor:"7,keyasint,omitempty"`
	// Serialized tells that runs wait for each other.
	Serialized bool `cbor:"8,keyasint,omitempty"`
	// Timeout bounds a run, in nanoseconds; 0 for no bound.
	Timeout int64 `cbor:"9,keyasint,omitempty"`
	// In is the Go type of its arguments, for people.
	In string `cbor:"10,keyasint,omitempty"`
	// Out is the Go type of its results, for people.
	Out string `cbor:"11,keyasint,omitempty"`
	// InFields are the fields of its arguments, where those are a map with certain keys.
	InFields []FieldInfo `cbor:"12,keyasint,omitempty"`
	// OutFields are the fields of its results.
	OutFields []FieldInfo `cbor:"13,keyasint,omitempty"`
	// Uncached counts calls that would have been cached, had not an argument been in memory that may still be written.
	Uncached uint64 `cbor:"14,keyasint,omitempty"`
	// Workers are the clients that run its function, by [OpOffer]; none for an endpoint of the server's own.
	Workers []EndpointWorker `cbor:"15,keyasint,omitempty"`
	// Writable tells that its function may write to the tensors of its arguments, whose memory has to be writable then.
	Writable bool `cbor:"16,keyasint,omitempty"`
}

// EndpointWorker is a client that runs the function of an endpoint.
type EndpointWorker struct {
	// Session is its connection.
	Session uint64 `cbor:"1,keyasint"`
	// PID is the process, as the kernel told it to the server.
	PID int32 `cbor:"2,keyasint,omitempty"`
	// UID is its user.
	UID uint32 `cbor:"3,keyasint,omitempty"`
	// Label is its name for people.
	Label string `cbor:"4,keyasint,omitempty"`
	// Running is how many calls it has that it has not answered, of all endpoints that it offered together.
	Running uint64 `cbor:"5,keyasint,omitempty"`
	// Most is how many it takes at once.
	Most uint64 `cbor:"6,keyasint,omitempty"`
	// Since is when it connected, in nanoseconds since 1970, UTC.
	Since int64 `cbor:"7,keyasint,omitempty"`
}

// FieldInfo describes a field of a map with certain keys, which is a Go struct.
type FieldInfo struct {
	// Name is the key.
	Name string `cbor:"1,keyasint"`
	// Type is the Go type, for people.
	Type string `cbor:"2,keyasint,omitempty"`
	// Optional tells that it may be left out.
	Optional bool `cbor:"3,keyasint,omitempty"`
	// Fields are the fields of its values or their elements, where those are maps with certain keys.
	Fields []FieldInfo `cbor:"4,keyasint,omitempty"`
}
