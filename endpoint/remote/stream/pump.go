package stream

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
)

// receiveStream is the half of a grpc stream that receives.
type receiveStream interface {
	RecvMsg(m any) error
}

// received is a message, or why there is none.
type received[M proto.Message] struct {
	head    M
	message *bulk.Message
	err     error
}

// pump receives messages in a goroutine of its own, so that waiting for the next one can have an end. The goroutine ends with its
// context: on the server the stream's, which ends when the handler returns; on the client that of the call, for the stream's own ends
// before its last message was taken.
type pump[M proto.Message] struct {
	ctx      context.Context
	messages chan received[M]
}

func newPump[M proto.Message](ctx context.Context, s receiveStream, newHead func() M, field protowire.Number) *pump[M] {
	p := &pump[M]{ctx: ctx, messages: make(chan received[M])}
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

// next waits for the next message. It is the caller's, who frees it or takes its data. The error is that of the stream, io.EOF at its
// end, or ErrStalled.
func (p *pump[M]) next(stall time.Duration) (M, *bulk.Message, error) {
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
