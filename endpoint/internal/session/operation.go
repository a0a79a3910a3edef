package session

import (
	"context"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Operation is what a server does on request.
type Operation struct {
	// Call does it. The request's descriptors are closed after it unless it takes them.
	Call func(ctx context.Context, r Request) (Reply, error)
	// Long operations may wait or compute, and get a goroutine of their own. The others are answered by the session's
	// reader, in the order in which they came.
	Long bool
	// Files operations take descriptors: those of their handles.
	Files bool
}

// perform runs the operation for a request.
func (op *Operation) perform(ctx context.Context, r Request) (_ Reply, err error) {
	ended := false
	defer func() {
		if !ended && r.Arguments != nil {
			r.Arguments.Drop()
		}
	}()
	defer r.Session.of.Engine.Recovered(&err, r.Callee, "")
	out, err := op.Call(ctx, r)
	ended = true
	return out, err
}

// Request is one request of a client.
type Request struct {
	Session *Session           // of the client
	ID      uint64             // of its frame
	Body    message.RawMessage // what it asks for, in the frame's memory
	Files   *wire.Files        // that came with it; closed when it is answered

	Reservation engine.Reservation // what its body and its descriptors count; that of arguments counts until these are done with
	Arguments   *engine.Arguments  // room for those of a call; may be nil
	Callee      *engine.Definition // of a call whose endpoint was found already; nil for others
	Call        message.CallParts  // of a call that was parsed already

	Metadata message.Metadata // for interceptors
}

// Decode reads the request's body into a message. An empty body leaves it as it is.
func (r *Request) Decode(into any) error {
	if len(r.Body) == 0 {
		return nil
	}
	return message.Unmarshal(r.Body, into)
}

// Reply is what a request is answered with.
type Reply struct {
	Body     any                  // the message, where there is no result
	Result   engine.ResultRef     // of a call; nothing for others
	KeptFor  *Session             // for which the result's memory is counted until the reply is closed; nil for none
	Returned message.Returned     // the message, where there is a result
	Files    []*os.File           // borrowed until the reply has been sent
	Slabs    *transfer.SlabExport // in which the result is sent; nil for most
	// Storages are shared, in the place of the files, with a client of this process. Borrowed until the reply has been
	// sent.
	Storages []*tensor.Storage
	// Head is the message up to Shared, which follows it and is in memory once for all that are answered with it; nil
	// where there is Body or Result. Borrowed until the reply has been sent.
	Head, Shared []byte
	After        func() // runs when the reply has been sent; may be nil
	Undo         func() // takes back what the reply hands out, where nobody got it; may be nil
}

// appendTo encodes the message.
func (r *Reply) appendTo(b []byte) ([]byte, error) {
	switch {
	case r.Result.Result != nil:
		return message.AppendReturned(slices.Grow(b, r.size()), &r.Returned)
	case r.Head != nil:
		return append(b, r.Head...), nil
	}
	body, err := message.MarshalPayload(r.Body)
	return append(b, body...), err
}

// size is how many bytes the message has at least, as far as that is known before it is encoded. What is shared does
// not count.
func (r *Reply) size() int {
	if r.Result.Result != nil {
		return len(r.Returned.Value) + engine.HandleBytes*len(r.Returned.Handles)
	}
	return len(r.Head)
}

// Lost takes back what the reply hands out: nobody got it. The caller closes it too.
func (r *Reply) Lost() {
	if r.Slabs != nil {
		r.Slabs.Unsent()
	}
	if r.Undo != nil {
		r.Undo()
	}
}

// memory are the storages that the reply is about.
func (r *Reply) memory() []*tensor.Storage {
	if r.Result.Result != nil {
		return r.Result.Payload.Storages
	}
	return r.Storages
}

// Close gives back what a reply has when it is of no use any more, sent or not.
func (r *Reply) Close() {
	if r.Slabs != nil {
		r.Slabs.Close()
	}
	r.release()
}

// release gives the result back.
func (r *Reply) release() {
	if r.Result.Result == nil {
		return
	}
	if r.KeptFor != nil {
		r.KeptFor.of.Engine.Memory.Give(r.KeptFor.ID, r.Result.Result)
	}
	r.Result.Release()
	r.Result = engine.ResultRef{}
}
