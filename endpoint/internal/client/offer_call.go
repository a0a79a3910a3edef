package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// maxCalls is the number of functions that run at once if [OfferConfig.Calls] is 0.
const maxCalls = 16 << 10

// event processes a call or a cancel. The goroutine that reads the connection calls it. It takes the frame. An error
// ends the connection.
func (o *Offer) event(conn *Conn, frame wire.Frame) error {
	var in message.OfferEvent
	if err := message.UnmarshalPayload(frame.Body, &in); err != nil {
		frame.Files.Close()
		return fmt.Errorf("%w: event of an offer: %w", status.ErrProtocol, err)
	}
	id := callID{conn, in.Call}
	switch in.Kind {
	case message.OfferCall:
		return o.accept(id, in, frame)
	case message.OfferCancel:
		o.cancelled(id, in.Reason)
	}
	frame.Files.Close()
	return nil
}

// cancelled ends the context of a function whose caller has left. The call counts until the function returns.
func (o *Offer) cancelled(id callID, reason string) {
	cause := context.Canceled
	if text := status.ShortText(reason, status.MaxReasonBytes); text != "" {
		cause = status.WithClass(context.Canceled, errors.New("the caller has left: "+text))
	}
	o.of.mu.Lock()
	cancel := o.running[id]
	o.of.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// accept runs a call in a new goroutine, or declines it. It takes the frame.
func (o *Offer) accept(id callID, in message.OfferEvent, frame wire.Frame) error {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	if _, again := o.running[id]; again {
		frame.Files.Close()
		return fmt.Errorf("%w: call %d was received twice", status.ErrProtocol, in.Call)
	}
	if reason := o.declineLocked(in.Endpoint); reason != "" {
		frame.Files.Close()
		id.conn.sendNoReply(Request{Op: message.OpAnswer, Body: message.Answer{Call: in.Call, Error: message.Decline(reason)}})
		return nil
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

// declineLocked returns the reason to decline a call, or "" to run it. A worker can be full although the owner counts a
// free slot, because functions whose callers have left, also on an earlier connection, count until they return.
func (o *Offer) declineLocked(endpoint string) string {
	most := o.Calls
	if most == 0 {
		most = maxCalls
	}
	switch {
	case o.drained || o.ended != nil:
		return "this worker has withdrawn its endpoints"
	case o.Endpoints[endpoint] == nil:
		return fmt.Sprintf("this worker has no endpoint %s", status.Shown(endpoint))
	case len(o.running) >= most:
		return fmt.Sprintf("this worker runs %d calls, which is its limit", len(o.running))
	}
	return ""
}

// returned records that a function has returned. It is called before the answer, after which the owner may send the
// next call.
func (o *Offer) returned(id callID) {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	delete(o.running, id)
}

// run runs the function of a call and reports its end. It borrows the frame.
func (o *Offer) run(ctx context.Context, id callID, in message.OfferEvent, frame wire.Frame) {
	if in.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, in.Timeout)
		defer cancel()
	}
	answered := false
	defer func() {
		if !answered { // the function called runtime.Goexit
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
			err = o.sendAnswer(o.ctx, id, answer, nil)
		}
		if err == nil || endReported(err) {
			return
		}
		if remote := new(message.Error); errors.As(err, &remote) {
			o.of.Log.Warn("the owner refused an answer", "endpoint", in.Endpoint, "error", err)
		}
	}
	o.fail(id, in, err)
}

// endReported reports whether an error of an answer implies that the owner has recorded the end of the function, or has
// disconnected. The owner may return other errors before it has identified the call.
func endReported(err error) bool {
	var remote *message.Error
	abandoned := errors.Is(err, context.Canceled) || errors.Is(err, status.ErrNotFound)
	return errors.As(err, &remote) && abandoned || errors.Is(err, status.ErrUnavailable)
}

// invoke runs the function of a call. The caller releases the result.
func (o *Offer) invoke(ctx context.Context, id callID, in message.OfferEvent, frame wire.Frame) (*engine.Result, error) {
	d := o.Endpoints[in.Endpoint]
	im := o.of.importer()
	im.Inline = id.conn.inline
	storages, err := im.Storages(in.Handles, frame.Files)
	if err != nil {
		return nil, fmt.Errorf("argument: %w", err)
	}
	args, err := o.engine.ArgumentsOf(d, in.Args, storages)
	if err != nil {
		return nil, err
	}
	args.Claim()
	if d.Stream != nil {
		ctx = engine.WithSend(ctx, func(ctx context.Context, item any) error { return o.item(ctx, id, item) })
	}
	return o.engine.Run(ctx, d, args)
}

// item sends one result of a stream and takes its tensors. It returns when the next one may be sent.
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
		return o.sendAnswer(ctx, id, answer, nil)
	}
	for _, s := range res.Payload.Storages {
		if _, lent := s.Lent(); lent { // memory of the owner or the caller
			continue
		}
		if err := driver.Freeze(s.Memory()); err != nil {
			return fmt.Errorf("result: %w", status.Unshareable(err))
		}
	}
	shared, err := transfer.ExportOrInline(res.Payload.Value, res.Payload.Storages, id.conn.inline, false)
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	defer shared.Close()
	shared.AddNames(res.Payload.Storages, o.of.Socket)
	answer.Handles = shared.Handles
	return o.sendAnswer(ctx, id, answer, shared)
}

// sendAnswer sends an answer with its memory and waits for the owner's response.
func (o *Offer) sendAnswer(ctx context.Context, id callID, answer message.Answer, shared *transfer.Export) error {
	request := Request{Op: message.OpAnswer, Body: answer}
	if shared != nil {
		request.Files = shared.Files
	}
	return id.conn.request(ctx, request, nil)
}

// failTime is the timeout for the response to an error. After that the error is queued.
const failTime = 10 * time.Second

// The first and the longest pause before the error is sent again.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// sleep waits and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// fail answers a call with an error. Without this answer the owner would not free the slot. fail therefore retries if
// the owner's limits refuse the request, and queues the error if the owner does not respond.
func (o *Offer) fail(id callID, in message.OfferEvent, err error) {
	answer := message.Answer{Call: in.Call, Error: failure(in.Endpoint, err)}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), failTime)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err = o.sendAnswer(ctx, id, answer, nil)
		if !errors.Is(err, status.ErrLimit) || !sleep(ctx, pause) {
			break
		}
	}
	if err != nil && !endReported(err) {
		o.of.Log.Warn("the owner did not accept the error of a call", "endpoint", in.Endpoint, "error", err)
		id.conn.sendNoReply(Request{Op: message.OpAnswer, Body: answer})
	}
}

// failure encodes the error of a function. The owner adds the endpoint's name. A function's error never declines the
// call, because a function that has begun must not run again.
func failure(endpoint string, err error) *message.Error {
	failed := status.EncodeSafely(err)
	failed.Message = strings.TrimPrefix(failed.Message, fmt.Sprintf("endpoint %q: ", endpoint))
	if failed.Declines() {
		failed.Code, failed.Type, failed.Data = message.CodeInternal, "", nil
	}
	return failed
}
