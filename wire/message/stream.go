package message

// StreamItem is one result of a stream: the body of an event frame with the ID of the stream's request, whose
// descriptors Handles name.
type StreamItem struct {
	// Value is the result: one CBOR item, in which [TagTensor] and [TagStateDict] may stand.
	Value RawMessage `cbor:"1,keyasint,omitempty"`
	// Handles are the storages that the result refers to.
	Handles []Handle `cbor:"2,keyasint,omitempty"`
}

// StreamWindow is how many items a server may send before the client allows more.
const StreamWindow = 16

// StreamMore allows more items of a stream.
type StreamMore struct {
	// Stream is the ID of the stream's request.
	Stream uint64 `cbor:"1,keyasint"`
	// Items is how many more the server may send.
	Items uint64 `cbor:"2,keyasint"`
}

// StreamMoreDone answers [OpStreamMore].
type StreamMoreDone struct{}
