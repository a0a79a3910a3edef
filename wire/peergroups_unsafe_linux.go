package wire

import (
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// maxGroups is the kernel's limit of supplementary groups (NGROUPS_MAX in limits.h).
const maxGroups = 65536

// PeerGroups returns the supplementary groups of the process that created the peer's socket, as the kernel recorded them
// at connect or listen, without those that have no id in this user namespace. Its effective group is in [Credentials].
func (c *Conn) PeerGroups() ([]uint32, error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	groups := make([]uint32, 32)
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		for {
			size := uint32(len(groups)) * 4
			_, _, errno = unix.RawSyscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
			n := int(size / 4)
			if errno == unix.ERANGE && n > len(groups) && n <= maxGroups { // size is what it needs
				groups = make([]uint32, n)
				continue
			}
			groups = groups[:min(n, len(groups))]
			return
		}
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(groups, func(gid uint32) bool { return userns.Group(gid) == NoID }), nil
}
