package server

import (
	"context"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// handler is a run without preparation: it performs the request.
type handler func(ctx context.Context, r *session.Request) (session.Reply, error)

// Run implements session.Run.
func (h handler) Run(ctx context.Context, r *session.Request) (session.Reply, error) {
	return h(ctx, r)
}

// End implements session.Run.
func (handler) End() {}

// inOrder returns the Prepare function of a brief operation. The session's reader performs it.
func inOrder(h handler) func(*session.Request) (session.Run, session.Place, error) {
	return func(*session.Request) (session.Run, session.Place, error) { return h, session.InOrder, nil }
}

// unlessLeaving refuses an operation after the session's goodbye. The client repeats it with the next owner, which may have
// newer versions.
func unlessLeaving(prepare func(*session.Request) (session.Run, session.Place, error)) func(*session.Request) (session.Run, session.Place, error) {
	return func(r *session.Request) (session.Run, session.Place, error) {
		if r.Session.InFlight.Leaving() {
			return nil, session.InOrder, status.ErrLeaving
		}
		return prepare(r)
	}
}

// async returns the Prepare function of an operation that may wait or compute.
func async(h handler) func(*session.Request) (session.Run, session.Place, error) {
	return func(*session.Request) (session.Run, session.Place, error) { return h, session.Async, nil }
}

// answer is a reply that consists of one message.
type answer struct {
	body  any
	after func() // runs when the reply has been sent; may be nil
	undo  func() // reverts the operation if the reply is lost; may be nil
}

// Size implements session.Reply.
func (*answer) Size() int { return 0 }

// AppendTo implements session.Reply.
func (a *answer) AppendTo(b []byte) ([]byte, error) {
	body, err := message.MarshalShown(a.body)
	return append(b, body...), err
}

// Attachments implements session.Reply.
func (*answer) Attachments() session.Attachments { return session.Attachments{} }

// Done implements session.Reply.
func (a *answer) Done(sent bool) {
	f := a.undo
	if sent {
		f = a.after
	}
	if f != nil {
		f()
	}
}

// sharedAnswer is a reply whose message is encoded already. The tail is in memory once for all its receivers. The files
// and the storages are borrowed too.
type sharedAnswer struct {
	answer
	head, tail []byte
	files      []*os.File
	storages   []*tensor.Storage
}

// Size implements session.Reply.
func (a *sharedAnswer) Size() int { return len(a.head) }

// AppendTo implements session.Reply.
func (a *sharedAnswer) AppendTo(b []byte) ([]byte, error) { return append(b, a.head...), nil }

// Attachments implements session.Reply.
func (a *sharedAnswer) Attachments() session.Attachments {
	return session.Attachments{Files: a.files, Storages: a.storages, Tail: a.tail}
}

// subscribe subscribes a request to a source. Events are sent after its answer.
func subscribe(r *session.Request, from session.Source, body any) (session.Reply, error) {
	events, id := &r.Session.Events, r.ID
	sub, err := events.Add(id, from)
	if err != nil {
		return nil, err
	}
	return &answer{body: body, after: func() { events.Begin(sub) }, undo: func() { events.Remove(id) }}, nil
}
