package wire

import "os"

// Credentials identify the process that created the peer's socket. The kernel recorded them at connect or listen. The
// peer cannot forge them, but it may have passed the socket to another process since.
type Credentials struct {
	// PID is the process id in this PID namespace, or 0 if the process is not visible from it.
	PID int32
	// UID and GID are the effective user and group. An id without a mapping in this user namespace is the overflow id,
	// usually 65534.
	UID, GID uint32
}

// SameUser reports whether the peer runs as the effective user of this process. Both sides usually require it: memory
// and names are not for other users, root included.
func (c Credentials) SameUser() bool { return int64(c.UID) == int64(os.Geteuid()) }
