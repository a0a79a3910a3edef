package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

var insecureCredentials = grpc.WithTransportCredentials(insecure.NewCredentials())

// ready waits until /readyz answers with status.
func ready(t *testing.T, gw *remotetest.Gateway, status int) {
	t.Helper()
	remotetest.Eventually(t, func() error {
		got, body, _ := get(t, http.DefaultClient, gw.HTTP()+"/readyz")
		if got != status {
			return fmt.Errorf("%d: %s", got, body)
		}
		return nil
	})
}

// A gateway starts without an owner, and reports over HTTP and gRPC when an owner attaches, leaves and returns.
func TestHealthFollowsTheOwner(t *testing.T) {
	socket := remotetest.Socket(t)
	gw := remotetest.StartGateway(t, socket)
	watch, err := grpc_health_v1.NewHealthClient(dialGRPC(t, gw)).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	until := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		for {
			answer, err := watch.Recv()
			require.NoError(t, err)
			if answer.GetStatus() == want {
				return
			}
		}
	}
	until(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	ready(t, gw, http.StatusServiceUnavailable)
	for range 2 {
		owner := remotetest.StartOwner(t, "--socket", socket)
		until(grpc_health_v1.HealthCheckResponse_SERVING)
		ready(t, gw, http.StatusOK)
		owner.Kill()
		until(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		ready(t, gw, http.StatusServiceUnavailable)
	}
	status, body, _ := get(t, http.DefaultClient, gw.HTTP()+"/health")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `"status":"healthy"`)
}

func TestMetrics(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=65536")
	gw := remotetest.StartGateway(t, owner.Socket)
	ready(t, gw, http.StatusOK)
	scrape := func() string {
		status, body, _ := get(t, http.DefaultClient, gw.HTTP()+"/metrics")
		require.Equal(t, http.StatusOK, status)
		parser := expfmt.NewTextParser(model.UTF8Validation)
		_, err := parser.TextToMetricFamilies(strings.NewReader(body))
		require.NoError(t, err, "Prometheus reads it")
		return body
	}
	body := scrape()
	for _, want := range []string{
		"sharedtensor_gateway_owner_attached 1", `sharedtensor_gateway_connections{listener="http"}`, "sharedtensor_models 1",
		`sharedtensor_gateway_requests_total{code="Service Unavailable",method="GET /readyz",protocol="http"}`, "go_goroutines",
	} {
		if !strings.Contains(want, "Unavailable") { // the number of early attempts is not compared
			require.Contains(t, body, want)
		}
	}
	owner.Stop()
	begin := time.Now()
	body = scrape()
	require.Less(t, time.Since(begin), remotetest.Patience/2, "an owner that hangs holds up no scrape")
	require.NotContains(t, body, "sharedtensor_models 1")
	owner.Continue()
	owner.Kill()
	ready(t, gw, http.StatusServiceUnavailable)
	require.Contains(t, scrape(), "sharedtensor_gateway_owner_attached 0")
}

// During a drain, a request in flight completes, new requests are refused, readiness reports it, and the page's stream
// does not delay it.
func TestDrain(t *testing.T) {
	gw := remotetest.StartGateway(t, gateway.Off, "--drain", "20s")
	page, err := http.Get(gw.HTTP() + "/v1/events")
	require.NoError(t, err)
	defer page.Body.Close()
	line, err := bufio.NewReader(page.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "retry: 2000\n", line)
	// Half a request, which the gateway waits to receive.
	conn, err := net.Dial("tcp", gw.Addresses.HTTP)
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
	begin := time.Now()
	require.NoError(t, gw.Terminate())
	require.Less(t, time.Since(begin), 20*time.Second)
	_, err = http.Get(gw.HTTP() + "/healthz")
	require.Error(t, err)
}

// In the lame-duck period the gateway is not ready, but serves new connections.
func TestLameDuckServesWhileNotReady(t *testing.T) {
	gw := remotetest.StartGateway(t, gateway.Off, "--lame-duck", "10m")
	ready(t, gw, http.StatusOK)
	health := grpc_health_v1.NewHealthClient(dialGRPC(t, gw))
	require.NoError(t, gw.Signal(syscall.SIGTERM))
	ready(t, gw, http.StatusServiceUnavailable)
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 3 {
		status, _, _ := get(t, fresh, gw.HTTP()+"/healthz")
		require.Equal(t, http.StatusOK, status)
	}
	answer, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, answer.GetStatus())

	short := remotetest.StartGateway(t, gateway.Off, "--lame-duck", "100ms")
	require.NoError(t, short.Terminate())
}

// A client that watches health does not delay the gateway's stop.
func TestDrainEndsStreamsOfHealth(t *testing.T) {
	gw := remotetest.StartGateway(t, gateway.Off, "--drain", "10m")
	watch, err := grpc_health_v1.NewHealthClient(dialGRPC(t, gw)).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	require.NoError(t, gw.Terminate())
}

func TestDebugListener(t *testing.T) {
	gw := remotetest.StartGateway(t, gateway.Off)
	status, _, _ := get(t, http.DefaultClient, gw.HTTP()+"/debug/pprof/")
	require.Equal(t, http.StatusNotFound, status, "pprof is not on the listener of everybody")
	address := remotetest.FreeAddress(t)
	remotetest.StartGateway(t, gateway.Off, "--debug", address)
	status, body, _ := get(t, http.DefaultClient, "http://"+address+"/debug/pprof/goroutine?debug=1")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "goroutine profile")
	status, _, _ = get(t, http.DefaultClient, "http://"+address+"/debug/pprof/", "Host", "evil.example")
	require.Equal(t, http.StatusForbidden, status)
}

func TestPortTaken(t *testing.T) {
	gw := remotetest.StartGateway(t, gateway.Off)
	require.Contains(t, remotetest.RefusedGateway(t, "--http", gw.Addresses.HTTP), "address already in use")
}

func TestUnixListener(t *testing.T) {
	path := filepath.Join(filepath.Dir(remotetest.Socket(t)), "http.sock")
	gw := remotetest.StartGateway(t, gateway.Off, "--http", "unix:"+path)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	status, _, _ := get(t, client, "http://gateway/healthz")
	require.Equal(t, http.StatusOK, status)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.Contains(t, remotetest.RefusedGateway(t, "--http", "unix:"+path), "another process serves")
	gw.Kill() // leaves its socket file
	remotetest.StartGateway(t, gateway.Off, "--http", "unix:"+path)
}

// A gateway answers on a thousand HTTP and a thousand gRPC connections, and the owner has one client. The test logs the
// cost of a connection for the README.
func TestThousandConnections(t *testing.T) {
	const each = 1000
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--max-connections", strconv.Itoa(each+10))
	ready(t, gw, http.StatusOK)
	http.DefaultClient.CloseIdleConnections()
	threads, files, before := remotetest.ProcStatus(t, owner.PID(), "Threads"), remotetest.OpenFiles(t, owner.PID()), remotetest.ProcStatus(t, gw.PID(), "VmRSS")

	conns := make([]net.Conn, each)
	for i := range conns {
		var err error
		conns[i], err = net.Dial("tcp", gw.Addresses.HTTP)
		require.NoError(t, err)
		defer conns[i].Close()
	}
	for _, conn := range conns {
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	for _, conn := range conns {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	afterHTTP := remotetest.ProcStatus(t, gw.PID(), "VmRSS")
	for range each {
		conn := dialGRPC(t, gw)
		conn.Connect()
	}
	remotetest.Eventually(t, func() error {
		_, body, _ := get(t, http.DefaultClient, gw.HTTP()+"/metrics")
		if !strings.Contains(body, fmt.Sprintf(`sharedtensor_gateway_connections{listener="grpc"} %d`, each)) {
			return fmt.Errorf("not all are connected yet")
		}
		return nil
	})
	afterGRPC := remotetest.ProcStatus(t, gw.PID(), "VmRSS")
	require.Equal(t, files, remotetest.OpenFiles(t, owner.PID()), "connections of others cost the owner no descriptor")
	require.LessOrEqual(t, remotetest.ProcStatus(t, owner.PID(), "Threads"), threads+2)
	t.Logf("one idle connection costs the gateway %d KiB of HTTP, %d KiB of gRPC", (afterHTTP-before)/each, (afterGRPC-afterHTTP)/each)
	require.Less(t, (afterHTTP-before)/each, 64*memoryFactor)
	require.Less(t, (afterGRPC-afterHTTP)/each, 256*memoryFactor)

	t.Run("one too many", func(t *testing.T) {
		var refused int
		for range 30 {
			conn, err := net.Dial("tcp", gw.Addresses.HTTP)
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
			if _, err := conn.Read(make([]byte, 1)); err == io.EOF || strings.Contains(err.Error(), "reset") {
				refused++
			}
		}
		require.GreaterOrEqual(t, refused, 15, "those beyond the limit are closed at once, instead of waiting")
	})
}

// gRPC clients that wait for the server reconnect to a gateway that was killed and restarted on the same port.
func TestGRPCClientsSurviveARestart(t *testing.T) {
	gw := remotetest.StartGateway(t, gateway.Off)
	conn := dialGRPC(t, gw)
	health := grpc_health_v1.NewHealthClient(conn)
	_, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	gw.Kill()
	remotetest.Eventually(t, func() error {
		if s := conn.GetState(); s == connectivity.Ready {
			return fmt.Errorf("%v", s)
		}
		return nil
	})
	remotetest.StartGateway(t, gateway.Off, "--grpc", gw.Addresses.GRPC)
	_, err = health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
}

// A gateway whose store is not writable does not start, and reports the reason.
func TestStoreNotADirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Contains(t, remotetest.RefusedGateway(t, "--nats", "embedded", "--store", filepath.Join(file, "store")), "not a directory")
}
