package session

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// answers sends the responses of one client and charges them to the client's limit while they are unread.
type answers struct {
	of     *Register
	conn   transport.Conn
	unread *Account // bytes that are not sent yet; nil for no limit
}

// sender is [wire.Conn.Send] or [wire.Conn.SendLater].
type sender func(kind wire.Kind, id uint64, body []byte, files ...*os.File) error

// send sends the result of a request. A returned error is one of the connection, not of the operation.
func (a *answers) send(id uint64, r Reply, failure error, send sender) error {
	if failure != nil {
		return a.fail(id, failure)
	}
	sent := false
	defer func() { r.Done(sent) }()
	held := HeldAnswer{of: a.unread}
	defer held.Release()
	if err := held.Grow(r.Size()); err != nil { // before it is encoded
		return a.fail(id, err)
	}
	buf := transport.Bodies.Get()
	defer transport.Bodies.Put(buf)
	var err error
	if *buf, err = r.AppendTo(*buf); err != nil {
		return a.fail(id, fmt.Errorf("encode the answer: %w", err))
	}
	if err := held.Grow(len(*buf)); err != nil {
		return a.fail(id, err)
	}
	if err := a.sendReply(send, id, *buf, r.Attachments()); err != nil {
		if errors.Is(err, wire.ErrTooLarge) { // nothing was sent
			return a.fail(id, status.WithClass(status.ErrLimit, err))
		}
		return err
	}
	sent = true
	return nil
}

// sendReply sends the response to a request. It does not copy the tail.
func (a *answers) sendReply(send sender, id uint64, body []byte, with Attachments) error {
	if len(with.Tail) == 0 {
		return a.sendFrame(send, wire.KindResponse, id, body, with.Files, with.Storages)
	}
	if conn, ok := a.conn.(*wire.Conn); ok {
		return conn.SendShared(wire.KindResponse, id, body, with.Tail, with.Files...)
	}
	return a.sendFrame(send, wire.KindResponse, id, slices.Concat(body, with.Tail), with.Files, with.Storages)
}

// sendFrame sends a frame with descriptors to another process, or with storages within this one. It borrows all
// arguments.
func (a *answers) sendFrame(send sender, kind wire.Kind, id uint64, body []byte, files []*os.File, storages []*tensor.Storage) error {
	if p, ok := a.conn.(*transport.Pipe); ok {
		return p.SendStorages(wire.Frame{Kind: kind, ID: id, Body: body}, storages)
	}
	return send(kind, id, body, files...)
}

// fail answers a request with an error.
func (a *answers) fail(id uint64, err error) error {
	a.of.Failures.Add(1)
	a.of.Totals.Refusals.Count(err)
	e := status.EncodeSafely(err)
	sent := a.sendError(id, e)
	if errors.Is(sent, wire.ErrTooLarge) { // frames are very small: send the class alone
		sent = a.sendError(id, &message.Error{Code: e.Code, Type: e.Type})
	}
	return sent
}

// sendError sends an error response.
func (a *answers) sendError(id uint64, e *message.Error) error {
	body, err := message.MarshalShown(e)
	if err != nil {
		return err
	}
	return a.conn.Send(wire.KindError, id, body)
}

// HeldAnswer is the memory that a response or a stream item is charged for while it is in memory for one client.
type HeldAnswer struct {
	of *Account
	n  int64
}

// smallAnswer is the size in bytes up to which responses are not charged. The limit of requests in flight bounds their
// number.
const smallAnswer = 4 << 10

// Grow raises the charge to a response of the given total size. It fails with ErrLimit if the client's limit is
// reached.
func (h *HeldAnswer) Grow(bytes int) error {
	more := int64(bytes) - h.n
	if bytes <= smallAnswer || more <= 0 {
		return nil
	}
	if err := h.of.Take(more); err != nil {
		return status.WithClass(status.ErrLimit, fmt.Errorf("the answer was not created: %w", err))
	}
	h.n += more
	return nil
}

// Release ends the charge.
func (h *HeldAnswer) Release() { h.of.Give(h.n) }

// Hold returns the charge for an item of a stream in memory. The caller releases it.
func (ses *Session) Hold() HeldAnswer { return HeldAnswer{of: ses.answers.unread} }

// SendItem sends an item of a stream with descriptors to another process, or with storages within this one. It borrows
// all arguments.
func (ses *Session) SendItem(request uint64, body []byte, files []*os.File, storages []*tensor.Storage) error {
	return ses.answers.sendFrame(ses.conn.Send, wire.KindEvent, request, body, files, storages)
}
