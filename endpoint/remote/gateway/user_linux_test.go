package gateway_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

const nobody = 65534

// asNobody dials from a socket of another user. The kernel assigns the socket the filesystem user of the thread that
// creates it.
type asNobody struct{}

// Dial implements nats.CustomDialer.
func (asNobody) Dial(network, address string) (net.Conn, error) {
	type dialed struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialed)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setfsuid(nobody); err != nil {
			done <- dialed{nil, err}
			return
		}
		conn, err := net.Dial(network, address)
		done <- dialed{conn, err}
	}()
	d := <-done
	return d.conn, d.err
}

// curlAs runs curl as a user and returns the status of the answer.
func curlAs(t *testing.T, uid uint32, args ...string) string {
	t.Helper()
	curl := exec.Command("curl", append([]string{"-sS", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}"}, args...)...)
	curl.Dir = "/"
	curl.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := curl.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// Without tokens, the listeners admit only the user of the gateway.
func TestLoopbackAdmitsItsOwnUser(t *testing.T) {
	drivertest.Needs(t, "root", os.Geteuid() == 0, "only root can act as another user")
	_, err := exec.LookPath("curl")
	drivertest.Needs(t, "curl", err == nil, "curl is not installed")
	debug := remotetest.FreeAddress(t)
	gw := remotetest.StartGateway(t, gateway.Off, "--nats", "embedded", "--nats-listen", "127.0.0.1:0", "--debug", debug)

	for path, open := range map[string]bool{"/v1/status": false, "/metrics": false, "/": false, "/v1/events": false, "/healthz": true} {
		want := "401"
		if open {
			want = "200"
		}
		require.Equal(t, want, curlAs(t, nobody, gw.HTTP()+path), path)
		if path != "/v1/events" { // a stream without an end
			require.Equal(t, "200", curlAs(t, 0, gw.HTTP()+path), path)
		}
	}
	require.Equal(t, "401", curlAs(t, nobody, "http://"+debug+"/debug/pprof/cmdline"))
	require.Equal(t, "200", curlAs(t, 0, "http://"+debug+"/debug/pprof/cmdline"))

	t.Run("grpc", func(t *testing.T) {
		require.NoError(t, reflect(t, dialGRPC(t, gw), ""))
		conn := dialGRPC(t, gw, insecureCredentials, grpc.WithContextDialer(func(_ context.Context, address string) (net.Conn, error) {
			return asNobody{}.Dial("tcp", address)
		}))
		require.Equal(t, codes.Unauthenticated, status.Code(reflect(t, conn, "")))
		_, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
	})
	t.Run("nats", func(t *testing.T) {
		conn, err := nats.Connect(gw.Addresses.NATS, nats.NoReconnect())
		require.NoError(t, err)
		conn.Close()
		_, err = nats.Connect(gw.Addresses.NATS, nats.NoReconnect(), nats.SetCustomDialer(asNobody{}))
		require.ErrorIs(t, err, nats.ErrAuthorization)
	})
	t.Run("a token admits any user", func(t *testing.T) {
		tokens := filepath.Join(t.TempDir(), "tokens")
		writeTokens(t, tokens, goodToken+" alice")
		gw := remotetest.StartGateway(t, gateway.Off, "--token-file", tokens)
		require.Equal(t, "401", curlAs(t, nobody, gw.HTTP()+"/v1/status"))
		require.Equal(t, "200", curlAs(t, nobody, "-H", "Authorization: Bearer "+goodToken, gw.HTTP()+"/v1/status"))
	})
	t.Run("the error names both users", func(t *testing.T) {
		status, body, _ := get(t, &http.Client{Transport: &http.Transport{Dial: asNobody{}.Dial}}, gw.HTTP()+"/v1/status")
		require.Equal(t, http.StatusUnauthorized, status)
		require.True(t, strings.Contains(body, "of uid 65534") && strings.Contains(body, "--token-file"), body)
	})
	t.Run("unix", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "http")
		remotetest.StartGateway(t, gateway.Off, "--http", "unix:"+path)
		require.Equal(t, "200", curlAs(t, 0, "--unix-socket", path, "http://localhost/v1/status"))
	})
}
