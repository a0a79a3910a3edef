// Package sockuser finds the user at the peer's end of a connection on this host.
package sockuser

import (
	"errors"
	"net"
)

// ErrUnknown means that the kernel does not report the user of a socket, because it is closed or in another network
// namespace.
var ErrUnknown = errors.New("the user of this connection is unknown")

// Of returns the uid of the peer of a connection on this host.
func Of(conn net.Conn) (uint32, error) {
	if local, isUnix := conn.(*net.UnixConn); isUnix {
		return ofUnix(local)
	}
	return OfTCP(conn.RemoteAddr(), conn.LocalAddr())
}
