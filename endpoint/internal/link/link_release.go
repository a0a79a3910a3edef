package link

import (
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// What a client gives back without waiting for the answer.

// ReleaseLate returns the lease of an answer for which nobody waits any more.
func (l *Link) ReleaseLate(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.Acquired
	if frame.Kind == wire.KindResponse && message.Unmarshal(frame.Body, &got) == nil {
		l.Release(got.Lease, frame.ID)
	}
}

// Release gives a lease back without waiting for the answer. It is called by whoever reads the connection too.
func (l *Link) Release(lease, request uint64) {
	l.Ignore(request)
	l.Tell(Request{Op: message.OpRelease, Body: message.Release{Leases: []uint64{lease}}})
}

// dropResult gives back what came with an answer for which nobody waits any more.
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

// CancelTask cancels a task whose submitter did not wait for the answer: nobody knows its id.
func (l *Link) CancelTask(frame wire.Frame) {
	defer frame.Files.Close()
	var got message.TaskInfo
	if frame.Kind == wire.KindResponse && message.UnmarshalPayload(frame.Body, &got) == nil {
		l.Tell(Request{Op: message.OpTaskCancel, Body: message.Task{ID: got.ID}})
	}
}

// ReleaseObject gives a reference back without waiting for the answer.
func (l *Link) ReleaseObject(id string, token uint64) {
	l.Tell(Request{Op: message.OpObjectRelease, Body: ReleaseOne(id, token)})
}

// ReleaseOne asks to take one reference back; token 0 is for servers that do not tell them apart.
func ReleaseOne(id string, token uint64) message.ReleaseObjects {
	ask := message.ReleaseObjects{IDs: []string{id}}
	if token != 0 {
		ask.Tokens = []uint64{token}
	}
	return ask
}

// Unwatch ends a watch that was listened to, without waiting for the answer.
func (l *Link) Unwatch(id uint64) {
	l.Receiver.Listen(-1)
	l.endWatch(id)
}

// endWatch has the owner end a watch.
func (l *Link) endWatch(id uint64) {
	l.Ignore(id)
	l.Tell(Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: id}})
}

// EndLateWatch ends a watch that the owner began when nobody waited for that any more. It takes the frame of its
// answer.
func (l *Link) EndLateWatch(frame wire.Frame) {
	defer frame.Files.Close()
	if frame.Kind == wire.KindResponse {
		l.endWatch(frame.ID)
	}
}
