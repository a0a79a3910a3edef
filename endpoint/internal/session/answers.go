package session

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/bufpool"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// answers sends what the requests of one client are answered with, and counts it as long as it is not read.
type answers struct {
	of     *Register
	conn   inproc.Conn
	unread *wire.Account // bytes that are not sent yet; nil where they do not count
}

// sender is [wire.Conn.Send] or [wire.Conn.SendLater].
type sender func(kind wire.Kind, id uint64, body []byte, files ...*os.File) error

// send sends what came of a request. The error is of the connection, not of the operation.
func (a *answers) send(id uint64, r Reply, failure error, send sender) error {
	if failure != nil {
		return a.fail(id, failure)
	}
	defer r.Close()
	sent := false
	defer func() {
		if !sent {
			r.Lost()
		}
	}()
	held := HeldAnswer{of: a.unread}
	defer held.Release()
	if err := held.Grow(r.size()); err != nil { // before it is made
		return a.fail(id, err)
	}
	buf := bufpool.Bodies.Get()
	defer bufpool.Bodies.Put(buf)
	var err error
	if *buf, err = r.appendTo(*buf); err != nil {
		return a.fail(id, fmt.Errorf("encode the answer: %w", err))
	}
	if err := held.Grow(len(*buf)); err != nil {
		return a.fail(id, err)
	}
	if r.Slabs != nil {
		// From here on the client owns the memory. It may return the slab before the send has returned here, and the next
		// result can use the slab only if this result was released.
		r.release()
	}
	if err := a.sendReply(send, id, *buf, &r); err != nil {
		if errors.Is(err, wire.ErrTooLarge) { // nothing was sent
			return a.fail(id, status.WithClass(status.ErrLimit, err))
		}
		return err
	}
	sent = true
	if r.After != nil {
		r.After()
	}
	return nil
}

// sendReply sends the answer to a request. What it shares with others is not copied.
func (a *answers) sendReply(send sender, id uint64, body []byte, r *Reply) error {
	if len(r.Shared) == 0 {
		return a.sendFrame(send, wire.KindResponse, id, body, r.Files, r.memory())
	}
	if conn, ok := a.conn.(*wire.Conn); ok {
		return conn.SendShared(wire.KindResponse, id, body, r.Shared, r.Files...)
	}
	return a.sendFrame(send, wire.KindResponse, id, slices.Concat(body, r.Shared), r.Files, r.memory())
}

// sendFrame sends a frame with what goes beside it, all of which it borrows: descriptors to another process, storages
// within this one.
func (a *answers) sendFrame(send sender, kind wire.Kind, id uint64, body []byte, files []*os.File, storages []*tensor.Storage) error {
	if p, ok := a.conn.(*inproc.Pipe); ok {
		return p.SendStorages(wire.Frame{Kind: kind, ID: id, Body: body}, storages)
	}
	return send(kind, id, body, files...)
}

// fail answers a request with an error.
func (a *answers) fail(id uint64, err error) error {
	a.of.Failures.Add(1)
	a.of.Totals.Refusals.Count(err)
	e := status.EncodeSafely(err)
	sent := a.tell(id, e)
	if errors.Is(sent, wire.ErrTooLarge) { // where frames are that small, the class has to do
		sent = a.tell(id, &message.Error{Code: e.Code, Type: e.Type})
	}
	return sent
}

// tell sends an error.
func (a *answers) tell(id uint64, e *message.Error) error {
	body, err := message.Marshal(e)
	if err != nil {
		return err
	}
	return a.conn.Send(wire.KindError, id, body)
}

// HeldAnswer is what an answer, or an item of a stream, counts while it is in memory for one client.
type HeldAnswer struct {
	of *wire.Account
	n  int64
}

// smallAnswer is how many bytes an answer may have without being counted: there are no more of them than requests in
// flight.
const smallAnswer = 4 << 10

// Grow counts an answer that has so many bytes in all.
func (h *HeldAnswer) Grow(bytes int) error {
	more := int64(bytes) - h.n
	if bytes <= smallAnswer || more <= 0 {
		return nil
	}
	if err := h.of.Take(more); err != nil {
		return status.WithClass(status.ErrLimit, fmt.Errorf("the answer is not made: %w", err))
	}
	h.n += more
	return nil
}

// Release ends that.
func (h *HeldAnswer) Release() { h.of.Give(h.n) }
