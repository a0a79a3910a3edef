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

// Operation is one operation of the protocol, as the server implements it.
type Operation struct {
	// Call performs the operation. The request's descriptors are closed afterwards unless Call took ownership of them.
	Call func(ctx context.Context, r Request) (Reply, error)
	// Long is set if the operation may wait or compute. It then runs in a separate goroutine. The session's reader
	// answers other operations, in the order of arrival.
	Long bool
	// Files is set if the operation accepts descriptors, which belong to its handles.
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

// Request is one request from a client.
type Request struct {
	Session *Session           // of the client
	ID      uint64             // of its frame
	Body    message.RawMessage // payload, in the frame's memory
	Files   *wire.Files        // received with it; closed when it is answered

	Reservation engine.Reservation // charge for body and descriptors; that of arguments ends when they are closed
	Arguments   *engine.Arguments  // storage for the arguments of a call; may be nil
	Callee      *engine.Definition // set if the endpoint of a call was already found; nil otherwise
	Call        message.CallParts  // set if the call was already parsed

	Metadata message.Metadata // for interceptors
}

// Decode decodes the request's body into a message. An empty body leaves the message unchanged.
func (r *Request) Decode(into any) error {
	if len(r.Body) == 0 {
		return nil
	}
	return message.Unmarshal(r.Body, into)
}

// Reply is the result of a request.
type Reply struct {
	Body     any                  // message, if there is no Result
	Result   engine.ResultRef     // of a call; zero for others
	KeptFor  *Session             // session that is charged for the result's memory until the reply is closed; nil for none
	Returned message.Returned     // message, if there is a Result
	Files    []*os.File           // borrowed until the reply has been sent
	Slabs    *transfer.SlabExport // slabs that carry the result; nil for most
	// Storages replace Files for a client in this process. They are borrowed until the reply has been sent.
	Storages []*tensor.Storage
	// Head is the start of the message and Shared the rest. Shared is kept once in memory for all requests that it
	// answers. Head is nil if Body or Result is set. Both are borrowed until the reply has been sent.
	Head, Shared []byte
	After        func() // runs when the reply has been sent; may be nil
	Undo         func() // reverts the operation if the reply is not delivered; may be nil
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

// size returns a lower bound of the message's size, as far as known before encoding. Shared is not counted.
func (r *Reply) size() int {
	if r.Result.Result != nil {
		return len(r.Returned.Value) + engine.HandleBytes*len(r.Returned.Handles)
	}
	return len(r.Head)
}

// Lost reverts the operation because the reply was not delivered. The caller also closes the reply.
func (r *Reply) Lost() {
	if r.Slabs != nil {
		r.Slabs.MarkUnsent()
	}
	if r.Undo != nil {
		r.Undo()
	}
}

// memory returns the storages that the reply refers to.
func (r *Reply) memory() []*tensor.Storage {
	if r.Result.Result != nil {
		return r.Result.Payload.Storages
	}
	return r.Storages
}

// Close releases the reply's resources, whether or not it was sent.
func (r *Reply) Close() {
	if r.Slabs != nil {
		r.Slabs.Close()
	}
	r.release()
}

// release releases the result.
func (r *Reply) release() {
	if r.Result.Result == nil {
		return
	}
	if r.KeptFor != nil {
		r.KeptFor.of.Engine.Memory.Remove(r.KeptFor.ID, r.Result.Result)
	}
	r.Result.Release()
	r.Result = engine.ResultRef{}
}
