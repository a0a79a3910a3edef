package endpoint_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// fakeOwner is a socket behind which the test is the owner, frame by frame, so that it can send invalid data at any
// time. Several owners may use the socket, one after another.
type fakeOwner struct {
	t        testing.TB
	socket   string
	listener *net.UnixListener
}

func newFakeOwner(t testing.TB) *fakeOwner {
	t.Helper()
	path := proctest.SocketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return &fakeOwner{t: t, socket: path, listener: l}
}

// dial starts to connect a client; the test must accept it.
func (o *fakeOwner) dial(opts endpoint.ClientOptions) <-chan *endpoint.Client {
	opts.Socket, opts.Logger = o.socket, discard()
	dialled := make(chan *endpoint.Client, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		c, err := endpoint.Dial(ctx, opts)
		if err != nil {
			o.t.Error(err)
		}
		dialled <- c
	}()
	return dialled
}

// connected returns a connected client and the owner's end of its connection.
func (o *fakeOwner) connected(server string, devices ...driver.Device) (*endpoint.Client, *ownerEnd) {
	o.t.Helper()
	dialled := o.dial(endpoint.ClientOptions{Devices: devices})
	end := o.greet(server)
	c := <-dialled
	require.NotNil(o.t, c)
	o.t.Cleanup(func() { c.Close() })
	return c, end
}

// accept accepts the next connection without a hello.
func (o *fakeOwner) accept() *ownerEnd {
	o.t.Helper()
	require.NoError(o.t, o.listener.SetDeadline(time.Now().Add(waitLimit)))
	raw, err := o.listener.AcceptUnix()
	require.NoError(o.t, err)
	conn, err := wire.NewConn(raw, wire.Limits{})
	require.NoError(o.t, err)
	o.t.Cleanup(func() { conn.Close() })
	return &ownerEnd{OwnerEnd: &proctest.OwnerEnd{Conn: conn, T: o.t}, raw: raw}
}

// greet accepts the next connection as the owner with that id.
func (o *fakeOwner) greet(server string) *ownerEnd {
	o.t.Helper()
	end := o.accept()
	_, err := message.ServerHandshake(end.Conn, message.Hello{Server: server}, nil)
	require.NoError(o.t, err)
	return end
}

// ownerEnd is the owner's end of a connection.
type ownerEnd struct {
	*proctest.OwnerEnd
	raw *net.UnixConn
}

// next returns the next event of a watcher.
func next(t testing.TB, w *endpoint.Watcher) endpoint.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	e, err := nextEvent(ctx, w)
	require.NoError(t, err)
	return e
}

// nextEvent is one step of a loop over a watcher's events.
func nextEvent(ctx context.Context, w *endpoint.Watcher) (e endpoint.Event, err error) {
	for e, err = range w.Events(ctx) {
		break
	}
	return e, err
}

// timeout limits how long a test waits for an event.
func timeout() <-chan time.Time { return time.After(waitLimit) }

// pings checks that the connection works.
func pings(t testing.TB, c *endpoint.Client, end *ownerEnd) {
	t.Helper()
	pinged := make(chan error, 1)
	go func() { _, err := c.Ping(context.Background()); pinged <- err }()
	end.SendFrame(wire.KindResponse, end.NextRequest(message.OpPing, nil), message.Pong{})
	require.NoError(t, <-pinged)
}
