package status

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// StaleReason says why a reference to a managed object is stale.
type StaleReason string

const (
	// StaleObjectMissing is an object that its server does not have any more.
	StaleObjectMissing StaleReason = "object_missing"
	// StaleServerMismatch is an object of a server in whose place another one answers.
	StaleServerMismatch StaleReason = "server_mismatch"
)

// StaleError is a managed object that is gone. It answers errors.Is for [ErrStale] and [message.CodeStaleHandle].
type StaleError struct {
	// ObjectID is the object, empty for a result that was none; ServerID is the server that had it.
	ObjectID string
	ServerID string
	// Reason says what became of it.
	Reason StaleReason
	// Detail is what the server said about it, for people: which process destroyed it. Mostly empty.
	Detail string
}

// Error names the object, the server and the reason.
func (e *StaleError) Error() string {
	object, server := "result", message.CutText(e.ServerID, MaxShown)
	if e.ObjectID != "" {
		object = "object " + Shown(e.ObjectID)
	}
	switch e.Reason {
	case StaleServerMismatch:
		return fmt.Sprintf("%s: %v: its server %s was replaced by another", object, ErrStale, server)
	}
	text := fmt.Sprintf("%s: %v: server %s does not have it any more", object, ErrStale, server)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Is makes the error answer for [ErrStale] and its code.
func (e *StaleError) Is(target error) bool {
	return target == ErrStale || target == message.CodeStaleHandle
}
