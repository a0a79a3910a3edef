package local

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// addr is a network address as text.
type addr struct{ network, text string }

// Network implements net.Addr.
func (a addr) Network() string { return a.network }

// String implements net.Addr.
func (a addr) String() string { return a.text }

func TestPeersOnThisHost(t *testing.T) {
	for text, want := range map[string]bool{
		"127.0.0.1:80": true, "127.9.9.9:1": true, "[::1]:80": true, "[::ffff:127.0.0.1]:5": true,
		"10.0.0.1:80": false, "[fe80::1%lo]:80": false, "": false, "localhost:80": false, "[::]:80": false,
	} {
		require.Equal(t, want, Addr(addr{"tcp", text}), text)
	}
	require.True(t, Addr(&net.UnixAddr{Name: "@", Net: "unix"}))
	require.False(t, Addr(nil))
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true, "[::1]": true, "": false, "0.0.0.0": false, "localhost:80": false, "gpu7": false} {
		require.Equal(t, want, Loopback(host), host)
	}
}

func TestReachedAndBound(t *testing.T) {
	for host, want := range map[string]bool{"localhost": true, "a.LOCALHOST.": true, "0.0.0.0": true, "[::]": true, "gpu7": false, "10.0.0.1": false} {
		require.Equal(t, want, Reached(host), host)
	}
	for address, want := range map[string]bool{"127.0.0.1:1": true, ":1": false, "0.0.0.0:1": false, "localhost": false} {
		require.Equal(t, want, Bound(address), address)
	}
}
