package admission

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
)

// pair returns both ends of a TCP connection.
func pair(t *testing.T, network, address string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil && network == "tcp6" {
		t.Skipf("this machine has no %s: %v", network, err)
	}
	require.NoError(t, err)
	defer l.Close()
	client, err = net.Dial(network, l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

func userOf(conn net.Conn) (uint32, error) {
	at := WithUser(conn).(*userAddr)
	return at.uid, at.err
}

// sock_diag and the tables of /proc report the same user.
func TestUserOfConnection(t *testing.T) {
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"} {
		t.Run(network, func(t *testing.T) {
			_, server := pair(t, network, address)
			uid, err := userOf(server)
			require.NoError(t, err)
			require.EqualValues(t, os.Geteuid(), uid)
			from, _ := addrPort(server.RemoteAddr())
			to, _ := addrPort(server.LocalAddr())
			listed, err := listedUser(from, to)
			require.NoError(t, err)
			require.Equal(t, uid, listed)
			_, err = listedUser(from, from)
			require.ErrorIs(t, err, ErrUnknownUser)
		})
	}
	t.Run("unix", func(t *testing.T) {
		l, err := net.Listen("unix", t.TempDir()+"/socket")
		require.NoError(t, err)
		defer l.Close()
		client, err := net.Dial("unix", l.Addr().String())
		require.NoError(t, err)
		defer client.Close()
		server, err := l.Accept()
		require.NoError(t, err)
		defer server.Close()
		uid, err := userOf(server)
		require.NoError(t, err)
		require.EqualValues(t, os.Geteuid(), uid)
	})
}

// A listener has a user and is not found as the end of a connection.
func TestUserListenerUser(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	uid, err := ListenerUser(l.Addr())
	require.NoError(t, err)
	require.EqualValues(t, os.Geteuid(), uid)
	_, err = ofTCP(l.Addr(), l.Addr())
	require.ErrorIs(t, err, ErrUnknownUser)
	require.NoError(t, l.Close())
	_, err = ListenerUser(l.Addr())
	require.ErrorIs(t, err, ErrUnknownUser)
}

// The user of a closed socket is unknown, although the kernel attributes the socket to root.
func TestUserOfClosedConnection(t *testing.T) {
	client, server := pair(t, "tcp4", "127.0.0.1:0")
	require.NoError(t, client.Close())
	_, err := userOf(server)
	require.ErrorIs(t, err, ErrUnknownUser)
	from, _ := addrPort(server.RemoteAddr())
	to, _ := addrPort(server.LocalAddr())
	_, err = listedUser(from, to)
	require.ErrorIs(t, err, ErrUnknownUser)
}

// addressed is a connection with another remote address.
type addressed struct {
	net.Conn
	remote net.Addr
}

func (c *addressed) RemoteAddr() net.Addr { return c.remote }
func (c *addressed) NetConn() net.Conn    { return c.Conn }

// The user of a client behind a proxy is unknown, although the proxy is a process of this host.
func TestUserOfProxiedClient(t *testing.T) {
	_, server := pair(t, "tcp4", "127.0.0.1:0")
	uid, err := UserOf(WithConn(t.Context(), &addressed{server, server.RemoteAddr()}))
	require.NoError(t, err)
	require.EqualValues(t, os.Geteuid(), uid)
	for _, client := range []net.Addr{server.RemoteAddr(), &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 1}} {
		proxied := &edge.ProxiedAddr{Addr: client, Proxy: server.RemoteAddr()}
		ctx := WithConn(t.Context(), &addressed{server, proxied})
		_, err = UserOf(ctx)
		require.ErrorIs(t, err, ErrUnknownUser)
		require.ErrorIs(t, CheckUser(PeerFrom(ctx)), ErrUnknownUser)
		require.Equal(t, client.String(), PeerFrom(ctx).String())
	}
}
