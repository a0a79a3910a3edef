package gateway

import (
	"fmt"
	"net"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/sockuser"
)

// userAddr is the remote address of a connection together with the user that owns the peer's socket.
type userAddr struct {
	net.Addr
	uid uint32
	err error // reason that uid is unknown
}

// withUser looks up the user of a connection. The user stays valid after the client closes its socket.
func withUser(conn net.Conn) net.Addr {
	uid, err := sockuser.Of(conn)
	return &userAddr{conn.RemoteAddr(), uid, err}
}

// checkUser returns nil if the connection with that remote address belongs to the user of this process. The owner's
// socket admits no other user, so a gateway without tokens must not either.
func checkUser(remote net.Addr) error {
	addr, ok := remote.(*userAddr)
	switch {
	case !ok:
		return fmt.Errorf("%w: %w", ErrUnauthenticated, sockuser.ErrUnknown)
	case addr.err != nil:
		return fmt.Errorf("%w: %w", ErrUnauthenticated, addr.err)
	case int64(addr.uid) != int64(os.Geteuid()):
		return fmt.Errorf("%w: without --token-file the gateway serves only uid %d, and this connection is of uid %d", ErrUnauthenticated, os.Geteuid(), addr.uid)
	}
	return nil
}
