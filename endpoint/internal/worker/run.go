package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// mostCalls is how many calls a worker takes from an owner at once that it has set no bound.
const mostCalls = 16 << 10

// event takes a call, or the word that nobody waits for one any more, by whoever reads the connection. It takes the
// frame. An error ends the link.
func (o *Offer) event(l *link.Link, frame wire.Frame) error {
	var in message.OfferEvent
	if err := message.UnmarshalPayload(frame.Body, &in); err != nil {
		frame.Files.Close()
		return fmt.Errorf("%w: event of an offer: %w", status.ErrProtocol, err)
	}
	id := callID{l, in.Call}
	switch in.Kind {
	case message.OfferCall:
		return o.accept(id, in, frame)
	case message.OfferCancel:
		o.cancelled(id, in.Reason)
	}
	frame.Files.Close()
	return nil
}

// cancelled ends the context of a function for whose result nobody waits any more.
func (o *Offer) cancelled(id callID, reason string) {
	cause := context.Canceled
	if text := limits.ShortText(reason, limits.ReasonBytes); text != "" {
		cause = status.WithClass(context.Canceled, errors.New("the caller has left: "+text))
	}
	o.mu.Lock()
	cancel := o.running[id]
	o.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// accept begins a call in a new goroutine. It takes the frame.
func (o *Offer) accept(id callID, in message.OfferEvent, frame wire.Frame) error {
	most := o.Calls
	if most == 0 {
		most = mostCalls
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch _, again := o.running[id]; {
	case o.drained || o.err != nil:
		frame.Files.Close()
		o.refuse(id, in)
		return nil
	case again:
		frame.Files.Close()
		return fmt.Errorf("%w: call %d came twice", status.ErrProtocol, in.Call)
	case len(o.running) >= most:
		frame.Files.Close()
		return fmt.Errorf("%w: more than %d calls at once", status.ErrProtocol, most)
	}
	ctx, cancel := context.WithCancelCause(o.ctx)
	o.running[id] = cancel
	o.work.Go(func() {
		defer frame.Files.Close()
		defer cancel(nil)
		o.run(ctx, id, in, frame)
	})
	return nil
}

// returned notes that a function has returned. The owner may send the next call as soon as it has the answer.
func (o *Offer) returned(id callID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.running, id)
}

// refuse answers a call that crossed the end of the offer. It does not wait.
func (o *Offer) refuse(id callID, in message.OfferEvent) {
	err := status.EncodeError(fmt.Errorf("%w in this worker any more", status.ErrNoEndpoint))
	id.link.Tell(link.Request{Op: message.OpAnswer, Body: message.Answer{Call: in.Call, Error: err}})
}

// run runs the function of a call and answers it. It borrows the frame.
func (o *Offer) run(ctx context.Context, id callID, in message.OfferEvent, frame wire.Frame) {
	if in.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, in.Timeout)
		defer cancel()
	}
	answered := false
	defer func() {
		if !answered { // the function ended its goroutine instead of returning
			o.returned(id)
			o.fail(id, in, status.ErrGoexit)
		}
	}()
	res, err := o.invoke(ctx, id, in, frame)
	answered = true
	o.returned(id)
	if err == nil {
		defer res.Release()
		answer := message.Answer{Call: in.Call}
		if !o.Endpoints[in.Endpoint].Streams() {
			err = o.send(o.ctx, id, answer, res)
		} else {
			err = o.tell(o.ctx, id, answer, nil)
		}
		if err == nil || refusedAnswer(err) {
			o.note(in, err)
			return
		}
	}
	o.fail(id, in, err)
}

// refusedAnswer reports whether the owner has had the answer, or cannot get one any more.
func refusedAnswer(err error) bool {
	var remote *message.Error
	return errors.As(err, &remote) || errors.Is(err, status.ErrUnavailable)
}

// note says of an answer that the owner did not take that it did not, unless nobody waited for it.
func (o *Offer) note(in message.OfferEvent, err error) {
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, status.ErrNotFound) && !errors.Is(err, status.ErrUnavailable) {
		o.of.log.Warn("the owner refused an answer", "endpoint", in.Endpoint, "error", err)
	}
}

// invoke runs the function of a call. The caller releases the result.
func (o *Offer) invoke(ctx context.Context, id callID, in message.OfferEvent, frame wire.Frame) (*engine.Result, error) {
	d := o.Endpoints[in.Endpoint]
	if d == nil {
		return nil, fmt.Errorf("endpoint %s: %w in this worker", status.Shown(in.Endpoint), status.ErrNoEndpoint)
	}
	storages, err := o.of.importer.Storages(in.Handles, frame.Files)
	if err != nil {
		return nil, fmt.Errorf("argument: %w", err)
	}
	args, err := o.engine.ArgumentsOf(d, in.Args, storages)
	if err != nil {
		return nil, err
	}
	args.Claim()
	if d.Stream != nil {
		ctx = engine.WithSend(ctx, func(item any) error { return o.item(ctx, id, item) })
	}
	return o.engine.Run(ctx, d, args)
}

// item sends one result of a stream, of which it takes the tensors, and returns when there is room for the next one.
func (o *Offer) item(ctx context.Context, id callID, item any) error {
	res, err := o.engine.Encode(item)
	if err != nil {
		return fmt.Errorf("item: %w", err)
	}
	defer res.Release()
	return o.send(ctx, id, message.Answer{Call: id.number, More: true}, res)
}

// send answers a call with a result, which it borrows.
func (o *Offer) send(ctx context.Context, id callID, answer message.Answer, res *engine.Result) error {
	answer.Value = res.Payload.Value
	if len(res.Payload.Storages) == 0 {
		return o.tell(ctx, id, answer, nil)
	}
	for _, s := range res.Payload.Storages {
		if _, lent := s.Lent(); lent { // the owner's, or the caller's
			continue
		}
		if f, can := s.Memory().(driver.Freezer); can {
			if err := f.Freeze(); err != nil {
				return fmt.Errorf("result: %w", status.Unshareable(err))
			}
		}
	}
	shared, err := transfer.ExportStorages(res.Payload.Storages)
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	defer shared.Close()
	shared.Claim(res.Payload.Storages, o.of.importer.Socket)
	answer.Handles = shared.Handles
	return o.tell(ctx, id, answer, shared)
}

// tell sends an answer, with the memory that goes with it.
func (o *Offer) tell(ctx context.Context, id callID, answer message.Answer, shared *transfer.Export) error {
	ask := link.Request{Op: message.OpAnswer, Body: answer}
	if shared != nil {
		ask.Files = shared.Files
	}
	return connector.RequestOn(ctx, id.link, ask, nil)
}

// answerTime is how long the error of a call may take to be taken.
const answerTime = 10 * time.Second

// fail answers a call with an error. The owner says itself which endpoint it is of.
func (o *Offer) fail(id callID, in message.OfferEvent, err error) {
	failed := status.EncodeSafely(err)
	failed.Message = strings.TrimPrefix(failed.Message, fmt.Sprintf("endpoint %q: ", in.Endpoint))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), answerTime)
	defer cancel()
	o.note(in, o.tell(ctx, id, message.Answer{Call: in.Call, Error: failed}, nil))
}
