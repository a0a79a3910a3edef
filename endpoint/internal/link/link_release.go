package link

import (
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The methods in this file release resources without waiting for the owner's answer.

// ReleaseLate releases the lease of an answer whose caller has left.
func (l *Link) ReleaseLate(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.Acquired
	if frame.Kind == wire.KindResponse && message.Unmarshal(frame.Body, &got) == nil {
		l.Release(got.Lease, frame.ID)
	}
}

// Release releases a lease without waiting for the answer. It may run in the goroutine that reads the connection.
func (l *Link) Release(lease, request uint64) {
	l.Ignore(request)
	l.SendNoReply(Request{Op: message.OpRelease, Body: message.Release{Leases: []uint64{lease}}})
}

// dropResult releases the resources of an answer whose caller has left.
func (l *Link) dropResult(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.Returned
	if frame.Kind != wire.KindResponse || message.UnmarshalPayload(frame.Body, &got) != nil {
		return
	}
	l.Slabs.Refuse(got.Handles)
	if got.Object != nil {
		l.ReleaseObject(got.Object.ID, got.Object.Token)
	}
}

// CancelLateTask cancels a task whose submitter left before the answer. It takes ownership of the answer's frame.
func (l *Link) CancelLateTask(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.TaskInfo
	if frame.Kind == wire.KindResponse && message.UnmarshalPayload(frame.Body, &got) == nil {
		l.CancelTask(got.ID)
	}
}

// CancelTask cancels a task without waiting for the answer.
func (l *Link) CancelTask(id string) {
	l.SendNoReply(Request{Op: message.OpTaskCancel, Body: message.Task{ID: id}})
}

// ReleaseObject releases a reference to an object without waiting for the answer.
func (l *Link) ReleaseObject(id string, token uint64) {
	l.SendNoReply(Request{Op: message.OpObjectRelease, Body: ReleaseOne(id, token)})
}

// ReleaseOne returns the request that releases one reference. Token 0 is for servers without reference tokens.
func ReleaseOne(id string, token uint64) message.ReleaseObjects {
	ask := message.ReleaseObjects{IDs: []string{id}}
	if token != 0 {
		ask.Tokens = []uint64{token}
	}
	return ask
}

// Unwatch stops the events of a watch and ends it without waiting for the answer.
func (l *Link) Unwatch(id uint64) {
	l.Receiver.Listen(-1)
	l.endWatch(id)
}

// endWatch sends the request that ends a watch.
func (l *Link) endWatch(id uint64) {
	l.Ignore(id)
	l.SendNoReply(Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: id}})
}

// EndLateWatch ends a watch whose caller left before the answer. It takes ownership of the answer's frame.
func (l *Link) EndLateWatch(frame wire.Frame) {
	defer frame.Files.Close()
	if frame.Kind == wire.KindResponse {
		l.endWatch(frame.ID)
	}
}
