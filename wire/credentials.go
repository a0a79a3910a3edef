package wire

import "os"

// Credentials are those of the process that made the other end of a connection. The kernel recorded them at connect or
// listen; the peer cannot forge them, but it may have handed the socket to another process since.
type Credentials struct {
	// PID is the process, as seen from here; 0 if it is in a PID namespace that this process cannot see.
	PID int32
	// UID and GID are the effective user and group. An id that has no place in this user namespace shows as the
	// overflow id, usually 65534.
	UID, GID uint32
}

// SameUser reports whether the peer runs as the effective user of this process. It is the usual policy on both sides:
// neither memory nor names are for other users, not even for root.
func (c Credentials) SameUser() bool { return int64(c.UID) == int64(os.Geteuid()) }
