package status

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// StaleReason is the reason why a reference to a managed object is stale.
type StaleReason string

const (
	// StaleObjectMissing means that the server no longer has the object.
	StaleObjectMissing StaleReason = "object_missing"
	// StaleServerMismatch means that another server has replaced the object's server.
	StaleServerMismatch StaleReason = "server_mismatch"
)

// StaleError describes a managed object that no longer exists. It matches [ErrStale] and [message.CodeStaleHandle].
type StaleError struct {
	// ObjectID is the object's id, or empty if the result was not an object. ServerID is the id of its server.
	ObjectID string
	ServerID string
	// Reason is the reason.
	Reason StaleReason
	// Detail is the server's explanation for people, such as the process that destroyed the object. It is often empty.
	Detail string
}

// Error returns the object, the server and the reason.
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

// Is reports whether target is [ErrStale] or its code.
func (e *StaleError) Is(target error) bool {
	return target == ErrStale || target == message.CodeStaleHandle
}
