package admission

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// ErrUnknownUser means that the kernel does not report the user of a socket, because it is closed or in another network
// namespace.
var ErrUnknownUser = errors.New("the user of this connection is unknown")

// userAddr is the remote address of a connection together with the user that owns the peer's socket.
type userAddr struct {
	net.Addr
	uid uint32
	err error // reason that uid is unknown
}

// WithUser returns the remote address of a connection for [CheckUser]. It looks up the user now, so that the user stays
// known after the client closes its socket.
func WithUser(conn net.Conn) net.Addr {
	local, isUnix := conn.(*net.UnixConn)
	if !isUnix {
		return WithTCPUser(conn.RemoteAddr(), conn.LocalAddr())
	}
	uid, err := ofUnix(local)
	return &userAddr{conn.RemoteAddr(), uid, err}
}

// WithTCPUser is like [WithUser], for the two addresses of a TCP connection.
func WithTCPUser(remote, local net.Addr) net.Addr {
	uid, err := ofTCP(remote, local)
	return &userAddr{remote, uid, err}
}

// CheckUser returns nil if the peer of a connection belongs to the user of this process. remote comes from [WithUser] or
// [WithTCPUser]. The owner's socket admits no other user, so a gateway without tokens must not either.
func CheckUser(remote net.Addr) error {
	addr, ok := remote.(*userAddr)
	switch {
	case !ok:
		return fmt.Errorf("%w: %w", rights.ErrUnauthenticated, ErrUnknownUser)
	case addr.err != nil:
		return fmt.Errorf("%w: %w", rights.ErrUnauthenticated, addr.err)
	case userns.User(addr.uid) == userns.None:
		return fmt.Errorf("%w: %s", rights.ErrUnauthenticated, userns.Unmapped("the client"))
	case !userns.Self(addr.uid):
		return fmt.Errorf("%w: without --token-file the gateway serves only uid %d, and this connection is of uid %d", rights.ErrUnauthenticated, os.Geteuid(), addr.uid)
	}
	return nil
}

// connAddr is the remote address of a connection whose user is looked up when it is needed.
type connAddr struct {
	net.Addr
	conn net.Conn
}

// WithConn returns a context that carries the remote address of a request's connection, for [PeerFrom] and [UserOf].
func WithConn(ctx context.Context, conn net.Conn) context.Context {
	remote := conn.RemoteAddr()
	switch remote.(type) {
	case *userAddr, *edge.ProxiedAddr: // the user of a proxied client is unknown
	default:
		remote = &connAddr{remote, conn}
	}
	return WithPeer(ctx, remote)
}

// UserOf returns the uid of the process that has sent a request, if it is on this host. The error is [ErrUnknownUser] or
// that of the lookup.
func UserOf(ctx context.Context) (uint32, error) {
	var found *userAddr
	switch addr := PeerFrom(ctx).(type) {
	case *userAddr:
		found = addr
	case *connAddr:
		conn := addr.conn
		for {
			under, wrapped := conn.(interface{ NetConn() net.Conn }) // as that of TLS
			if !wrapped {
				break
			}
			conn = under.NetConn()
		}
		found, _ = WithUser(conn).(*userAddr)
	}
	switch {
	case found == nil:
		return 0, ErrUnknownUser
	case found.err != nil:
		return 0, found.err
	case userns.User(found.uid) == userns.None:
		return 0, fmt.Errorf("%w: %s", ErrUnknownUser, userns.Unmapped("the client"))
	}
	return found.uid, nil
}

type peerKey struct{}

// WithPeer returns a context that carries the remote address of a request's connection.
func WithPeer(ctx context.Context, remote net.Addr) context.Context {
	return context.WithValue(ctx, peerKey{}, remote)
}

// PeerFrom returns the remote address of the request's connection, or nil if it is not known.
func PeerFrom(ctx context.Context) net.Addr {
	addr, _ := ctx.Value(peerKey{}).(net.Addr)
	return addr
}
