package message

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
