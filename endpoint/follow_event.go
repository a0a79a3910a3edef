package endpoint

import "fmt"

// FollowEventKind says what a [FollowEvent] is about.
type FollowEventKind uint8

const (
	// FollowTook is a version that requests get from now on.
	FollowTook FollowEventKind = iota + 1
	// FollowRefused is a version that was not taken, with the reason: Validate refused it, or it could not be
	// attached. One that could not be attached is tried again.
	FollowRefused
	// FollowWithdrawn is a name that was withdrawn. The version that was taken before stays in use.
	FollowWithdrawn
	// FollowOwnerLost is the connection to the owner that ended. The version that was taken stays in use, and the
	// client dials again.
	FollowOwnerLost
	// FollowOwnerBack is the connection to an owner, the same or another, that was made again.
	FollowOwnerBack
	// FollowUnmapped is a version that was superseded here and whose last request has ended: its memory is unmapped.
	FollowUnmapped
)

// String is the kind in one or two words.
func (k FollowEventKind) String() string {
	switch k {
	case FollowTook:
		return "took"
	case FollowRefused:
		return "refused"
	case FollowWithdrawn:
		return "withdrawn"
	case FollowOwnerLost:
		return "owner lost"
	case FollowOwnerBack:
		return "owner back"
	case FollowUnmapped:
		return "unmapped"
	}
	return fmt.Sprintf("FollowEventKind(%d)", uint8(k))
}

// FollowEvent is what a follower tells.
type FollowEvent struct {
	// Kind says what happened.
	Kind FollowEventKind
	// Name is the name that is followed.
	Name string
	// Version is the version that it happened to; 0 for events of the owner, and for a refusal of which the version
	// is not known.
	Version uint64
	// Server is the id of the owner.
	Server string
	// Err is why a version was refused; nil for other kinds.
	Err error
}
