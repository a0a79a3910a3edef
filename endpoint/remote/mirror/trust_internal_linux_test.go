package mirror

import (
	"net"
	"net/http"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
)

// listenAs listens on the loopback interface as another user. The kernel takes a socket's user from the thread that
// creates it.
func listenAs(t *testing.T, uid int) net.Listener {
	t.Helper()
	made := make(chan net.Listener, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread exits with the goroutine
		defer close(made)
		if unix.Setfsuid(uid) != nil {
			return
		}
		if l, err := net.Listen("tcp4", "127.0.0.1:0"); err == nil {
			made <- l
		}
	}()
	l := <-made
	require.NotNil(t, l)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// A mirror of another user on this host receives the token only if it is trusted.
func TestOtherUsersDoNotReceiveTheToken(t *testing.T) {
	drivertest.Needs(t, "root", os.Geteuid() == 0, "only root can act as another user")
	l := listenAs(t, 65534)
	server := &http.Server{Handler: http.NotFoundHandler()} //nolint:gosec // a test's own client
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	address := "http://" + l.Addr().String()
	get := func(trust ...string) error {
		p := &Peers{options: PeersOptions{Token: "secret"}}
		var err error
		p.trusted, err = parseTrusted(trust)
		require.NoError(t, err)
		client := store.NewHTTPClient(nil, 1, sameHost)
		defer client.CloseIdleConnections()
		p.checkUsers(client)
		resp, err := client.Get(address)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	require.ErrorContains(t, get(), "uid 65534 listens there")
	require.NoError(t, get("127.0.0.1"))
}
