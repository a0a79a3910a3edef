package session

import (
	"context"
	"math"
	"os"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Client is the state of a server for the client of one session.
type Client interface {
	// Greeted is called after the handshake with a client in another process, before its first request.
	Greeted(agreed *message.Agreement)
	// Uses reports whether an earlier request still uses its id. Requests in flight and subscriptions are not included.
	Uses(request uint64) bool
	// Busy reports whether the client holds resources, so that the session is not idle.
	Busy() bool
	// Disconnected is called when the connection has ended, before the requests in flight are cancelled.
	Disconnected()
	// Release releases the client's resources. Requests in flight may still create more.
	Release()
	// Close releases all resources, after the last request has ended.
	Close()
}

// Peer returns the client's credentials as reported by the kernel.
func (ses *Session) Peer() wire.Credentials { return ses.conn.Peer() }

// Groups returns the client's effective and supplementary groups as reported by the kernel, without those that have no id
// in this user namespace.
func (ses *Session) Groups() ([]uint32, error) {
	var groups []uint32
	if gid := ses.conn.Peer().GID; gid != wire.NoID {
		groups = append(groups, gid)
	}
	conn, ok := ses.conn.(*wire.Conn)
	if !ok {
		return groups, nil
	}
	more, err := conn.PeerGroups()
	return append(groups, more...), err
}

// Label returns the client's label, truncated to the maximum length.
func (ses *Session) Label() string {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.label
}

// InProcess reports whether the client is in this process and therefore shares memory without export and import.
func (ses *Session) InProcess() bool {
	_, ok := ses.conn.(*transport.Pipe)
	return ok
}

// LimitOf returns n, a limit of one client, or math.MaxInt for the server's own session, which has no limits.
func (ses *Session) LimitOf(n int) int {
	if ses.Own {
		return math.MaxInt
	}
	return n
}

// Since returns the time at which the client connected.
func (ses *Session) Since() time.Time { return ses.since }

// SendContext is the method of [wire.Conn]. It sends a frame to the client.
func (ses *Session) SendContext(ctx context.Context, kind wire.Kind, id uint64, body []byte, files ...*os.File) error {
	return ses.conn.SendContext(ctx, kind, id, body, files...)
}

// Buffered reports whether the reader has received frames that it has not handled yet. Only the reader calls it.
func (ses *Session) Buffered() bool { return ses.conn.Buffered() }
