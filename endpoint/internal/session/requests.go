package session

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// request answers one request or starts it in another goroutine. It reports whether the caller is still the reader.
func (ses *Session) request(frame wire.Frame) (reading bool, err error) {
	if err := ses.checkID(frame.ID); err != nil {
		discard(frame)
		return true, err
	}
	if frame.Refused != nil {
		discard(frame)
		ses.of.Requests.Add(1)
		if errors.Is(frame.Refused, syscall.EMFILE) || errors.Is(frame.Refused, syscall.ENFILE) {
			ses.of.Totals.Files.refuse()
		}
		return true, ses.answers.fail(frame.ID, status.WithClass(status.ErrLimit, frame.Refused))
	}
	req, err := message.ParseRequest(frame.Body)
	if err != nil {
		discard(frame)
		if errors.Is(err, message.ErrBounds) { // the frame is valid, its content is over a limit
			ses.of.Requests.Add(1)
			return true, ses.answers.fail(frame.ID, fmt.Errorf("request: %w", err))
		}
		return true, fmt.Errorf("%w: request %d: %w", wire.ErrProtocol, frame.ID, err)
	}
	ses.of.Requests.Add(1)
	op, ok := ses.of.Operations[req.Op]
	var refused error
	switch {
	case ses.Own && ses.of.Stopped() && !op.Releases && !nested(frame.Context):
		refused = status.ErrServerClosing
	case !ok:
		refused = fmt.Errorf("%w: this owner does not support operation %d", errors.ErrUnsupported, req.Op)
	case frame.Files.Len() > 0 && !op.Files:
		refused = fmt.Errorf("%w: %s takes no descriptors, received %d", wire.ErrProtocol, req.Op, frame.Files.Len())
	}
	if refused != nil {
		discard(frame)
		return true, ses.answers.fail(frame.ID, refused)
	}
	w, place := newWork(ses, &req, frame), InOrder
	w.late = op.Late
	if w.run, place, err = op.Prepare(&w.Request); err == nil && place != InOrder {
		err = w.start(req.Timeout, frame)
	}
	if err != nil {
		w.end()
		discard(frame)
		if errors.Is(err, status.ErrLeaving) {
			ses.sayGoodbye() // before the refusal, so that the client repeats the request on another connection
		}
		return true, ses.answers.fail(frame.ID, err)
	}
	switch place {
	case InOrder:
		defer discard(frame)
		return true, w.runInOrder()
	case Inline:
		return w.runInline()
	default:
		ses.of.runners.run(w)
		return true, nil
	}
}

// nested reports whether a request of this process belongs to a task or to a request that has not ended. A server that closes
// still accepts it: its function may not end without it.
func nested(ctx context.Context) bool {
	if ctx == nil {
		return false
	}
	if _, inTask := task.ID(ctx); inTask {
		return true
	}
	outer, ok := ctx.Value(transport.RequestKey{}).(*Context)
	return ok && !outer.isOver()
}

// checkID refuses the request id 0, because no response could carry it, and the id of a request or subscription that
// has not ended, because the responses would be ambiguous.
func (ses *Session) checkID(id uint64) error {
	if id == 0 {
		return fmt.Errorf("%w: a request has the id 0", wire.ErrProtocol)
	}
	if ses.InFlight.get(id) != nil || ses.Events.Has(id) || ses.Client.Uses(id) {
		return fmt.Errorf("%w: the id of request %d is in use", wire.ErrProtocol, id)
	}
	return nil
}

// cancelRequest cancels a request's context with the client's reason as the cause. It borrows the frame.
func (ses *Session) cancelRequest(frame wire.Frame) error {
	cause := context.Canceled
	if len(frame.Body) > 0 {
		var in message.Cancel
		if err := message.Unmarshal(frame.Body, &in); err != nil {
			return fmt.Errorf("%w: cancellation of request %d: %w", wire.ErrProtocol, frame.ID, err)
		}
		if reason := status.ShortText(in.Reason, status.MaxReasonBytes); reason != "" {
			cause = status.WithClass(context.Canceled, errors.New("the client cancelled the request: "+reason))
		}
	}
	if c := ses.InFlight.get(frame.ID); c != nil {
		c.end(cause)
	}
	return nil
}
