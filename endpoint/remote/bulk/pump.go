package bulk

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// ErrStalled means that the peer has sent nothing for too long.
var ErrStalled = admission.NewError(admission.Timeout, "the peer has stalled")

// Receiver is the receiving half of a gRPC stream.
type Receiver interface {
	// RecvMsg receives a message.
	RecvMsg(m any) error
}

// Pump receives in a dedicated goroutine, which ends with its context. On the server this is the context of the stream,
// which ends when the handler returns. On the client it must be the context of the call, because that of the stream
// ends before the last message is taken.
type Pump[M proto.Message] struct {
	ctx      context.Context
	messages chan received[M]
}

// received is a message or the error that ended the stream.
type received[M proto.Message] struct {
	head    M
	message *Message
	err     error
}

// NewPump returns a pump for messages whose large field has the number field.
func NewPump[M proto.Message](ctx context.Context, s Receiver, newHead func() M, field protowire.Number) *Pump[M] {
	p := &Pump[M]{ctx: ctx, messages: make(chan received[M])}
	contain.Go(func() {
		for {
			r := received[M]{head: newHead()}
			r.message = &Message{Head: r.head, Field: field}
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
	}, func(err error) { // the codec panicked
		select {
		case p.messages <- received[M]{head: newHead(), message: &Message{Field: field}, err: err}:
		case <-p.ctx.Done():
		}
	})
	return p
}

// Next waits at most stall for the next message. The caller owns it and frees it or takes its data. The error is that
// of the stream, io.EOF at its end, ErrStalled, or the cause of the context.
func (p *Pump[M]) Next(stall time.Duration) (M, *Message, error) {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	var none M
	select {
	case r := <-p.messages:
		return r.head, r.message, r.err
	case <-p.ctx.Done():
		return none, nil, context.Cause(p.ctx)
	case <-timer.C:
		return none, nil, fmt.Errorf("%w: nothing received for %v", ErrStalled, stall)
	}
}
