package session

import (
	"context"
	"os"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Operation is one operation that clients can request.
type Operation struct {
	// Prepare begins a request and returns the run that executes it. The goroutine that reads the client's frames calls
	// Prepare, in the order of arrival, so Prepare must not wait.
	Prepare func(r *Request) (Run, Place, error)
	// Files is set if the operation accepts descriptors.
	Files bool
	// Releases is set if the operation only releases resources. The server's own client may then request it while the
	// server closes.
	Releases bool
	// Late is set if the operation is accepted after the session's goodbye, for the tasks that end here.
	Late bool
}

// Place is where a session runs a request.
type Place uint8

const (
	// InOrder runs the request on the reader, before the next frame is read. The request cannot be cancelled: its
	// context is the session's.
	InOrder Place = iota
	// Async runs the request in another goroutine.
	Async
	// Inline runs the request on the reader. If it takes long, another goroutine takes over the read loop.
	Inline
)

// Run executes one request.
type Run interface {
	// Run executes the request. It takes the descriptors that it needs. The session closes the rest afterwards.
	Run(ctx context.Context, r *Request) (Reply, error)
	// End releases the resources of the run. It is called once, after the response was sent or lost, even if Run was not
	// called or panicked.
	End()
}

// Reply is the result of a request.
type Reply interface {
	// Size returns a lower bound of the size of the message, as far as known before encoding.
	Size() int
	// AppendTo encodes the message.
	AppendTo(b []byte) ([]byte, error)
	// Attachments returns what is sent with the message. It is borrowed until Done.
	Attachments() Attachments
	// Done is called once, when the reply was sent or lost. It reverts the operation of a lost reply and releases the
	// reply's resources.
	Done(sent bool)
}

// Attachments are sent together with a message.
type Attachments struct {
	Files    []*os.File        // for clients in other processes
	Storages []*tensor.Storage // for clients in this process, instead of Files
	Tail     []byte            // rest of the message, which many responses share; nil for none
}

// Request is one request from a client. It is valid until the end of its run.
type Request struct {
	Session  *Session           // of the client
	Op       message.Op         // requested operation
	ID       uint64             // of its frame
	Body     message.RawMessage // payload, in the frame's memory
	Files    *wire.Files        // received with it; closed when it is answered
	Metadata message.Metadata   // for interceptors

	// Context is the memory of the request's context. Prepare may set it to memory that it allocates together with other
	// memory of the request. Functions may keep a context, so that memory is used once.
	Context *Context
	// SendNow makes the session send the response at once, because the end of the run takes long.
	SendNow bool
}

// Decode decodes the request's body into a message. An empty body leaves the message unchanged.
func (r *Request) Decode(into any) error {
	if len(r.Body) == 0 {
		return nil
	}
	return message.Unmarshal(r.Body, into)
}
