// Package pump receives messages of a gRPC stream so that waiting for the next one can have an end.
package pump

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
)

// ErrStalled is a peer that sent nothing for too long.
var ErrStalled = errors.New("the peer does nothing")

// Stream is the half of a grpc stream that receives.
type Stream interface {
	// RecvMsg receives a message.
	RecvMsg(m any) error
}

// Pump receives in a goroutine of its own, which ends with the context: on the server that of the stream, which ends
// when the handler returns; on the client that of the call, for the stream's own ends before its last message was
// taken.
type Pump[M proto.Message] struct {
	ctx      context.Context
	messages chan received[M]
}

// received is a message, or why there is none.
type received[M proto.Message] struct {
	head    M
	message *bulk.Message
	err     error
}

// New returns a pump of messages whose large field has that number.
func New[M proto.Message](ctx context.Context, s Stream, newHead func() M, field protowire.Number) *Pump[M] {
	p := &Pump[M]{ctx: ctx, messages: make(chan received[M])}
	go func() {
		for {
			r := received[M]{head: newHead()}
			r.message = &bulk.Message{Head: r.head, Field: field}
			r.err = s.RecvMsg(r.message)
			select {
			case p.messages <- r:
				if r.err != nil {
					return
				}
			case <-p.ctx.Done():
				r.message.Free()
				return
			}
		}
	}()
	return p
}

// Next waits for the next message, no longer than stall. It is the caller's, who frees it or takes its data. The error
// is that of the stream, io.EOF at its end, ErrStalled, or the cause of the context.
func (p *Pump[M]) Next(stall time.Duration) (M, *bulk.Message, error) {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	var none M
	select {
	case r := <-p.messages:
		return r.head, r.message, r.err
	case <-p.ctx.Done():
		return none, nil, context.Cause(p.ctx)
	case <-timer.C:
		return none, nil, fmt.Errorf("%w: it sent nothing for %v", ErrStalled, stall)
	}
}
