package computegate_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computegate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streamgate"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestMain(m *testing.M) {
	remotetest.Main(m, func() []gateway.Component { return []gateway.Component{streamgate.New(), computegate.New()} })
}

// quick retries with negligible pauses.
var quick = compute.Retry{Attempts: 3, Initial: 10 * time.Millisecond}

func dial(t *testing.T, address string, opts compute.ClientOptions) *compute.Client {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return compute.NewClient(conn, opts)
}

func floats(t *testing.T, values ...float32) *tensor.Tensor {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	x, err := tensor.FromSlice(dev, tensor.Shape{int64(len(values))}, values)
	require.NoError(t, err)
	t.Cleanup(func() { x.Close(); dev.Close() })
	return x
}

// requireHealth waits until the service of the gateway has the given health.
func requireHealth(t *testing.T, gw *remotetest.Gateway, want grpc_health_v1.HealthCheckResponse_ServingStatus) {
	t.Helper()
	conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	remotetest.Eventually(t, func() error {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: compute.ServiceName})
		if err == nil && answer.GetStatus() != want {
			err = fmt.Errorf("%s", answer.GetStatus())
		}
		return err
	})
}

// begin calls a function that takes a minute, and returns once it runs.
func begin(t *testing.T, gw *remotetest.Gateway, client *compute.Client) <-chan error {
	t.Helper()
	ended, minute := make(chan error, 1), floats(t, 60_000)
	go func() {
		_, err := client.ComputeTimed(context.Background(), "linger", minute)
		ended <- err
	}()
	remotetest.Eventually(t, func() error {
		resp, err := http.Get(gw.HTTP() + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(text), `sharedtensor_functions_running{function="linger"} 1`) &&
			!strings.Contains(string(text), `sharedtensor_gateway_compute_in_flight{model="linger"} 1`) {
			err = fmt.Errorf("it does not run yet")
		}
		return err
	})
	time.Sleep(100 * time.Millisecond) // until the gateway has passed the call to the owner
	return ended
}

// If the owner is killed, running and new calls fail. Calls to the next owner succeed.
func TestOwnerKilled(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	requireHealth(t, gw, grpc_health_v1.HealthCheckResponse_SERVING)
	careful := dial(t, gw.Addresses.GRPC, compute.ClientOptions{NotIdempotent: true, Retry: quick})
	ended := begin(t, gw, careful)
	owner.Kill()
	err := <-ended
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorIs(t, err, compute.ErrUnknown, "it may have run")
	require.Equal(t, uint64(1), careful.Statistics().Attempts, "and is not run again")
	requireHealth(t, gw, grpc_health_v1.HealthCheckResponse_NOT_SERVING)

	_, err = careful.ComputeTimed(t.Context(), "linger", floats(t, 0))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.NotErrorIs(t, err, compute.ErrUnknown, "there was no owner to run it")
	require.Equal(t, uint64(4), careful.Statistics().Attempts, "so it was tried again")

	remotetest.StartOwner(t, "--socket", owner.Socket)
	requireHealth(t, gw, grpc_health_v1.HealthCheckResponse_SERVING)
	result, err := careful.ComputeTimed(t.Context(), "linger", floats(t, 1, 2, 3))
	require.NoError(t, err)
	defer result.Tensor.Close()
	values, err := tensor.Float32s(result.Tensor)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 3}, values)
}

// If the gateway is killed while a function runs, an idempotent call gets its result from the next gateway. A call that
// is not idempotent fails with an unknown outcome.
func TestGatewayKilled(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	requireHealth(t, gw, grpc_health_v1.HealthCheckResponse_SERVING)
	careful := dial(t, gw.Addresses.GRPC, compute.ClientOptions{NotIdempotent: true, Retry: quick})
	ended := begin(t, gw, careful)
	gw.Kill()
	err := <-ended
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorIs(t, err, compute.ErrUnknown)
	require.Equal(t, uint64(1), careful.Statistics().Attempts)

	_, err = careful.ComputeTimed(t.Context(), "linger", floats(t, 0))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.NotErrorIs(t, err, compute.ErrUnknown, "it never got as far as a connection")

	patient := dial(t, gw.Addresses.GRPC, compute.ClientOptions{Retry: compute.Retry{Attempts: 300, Initial: 100 * time.Millisecond, Fixed: true}})
	got := make(chan error, 1)
	x := floats(t, 0)
	go func() {
		result, err := patient.ComputeTimed(t.Context(), "linger", x)
		if err == nil {
			err = result.Tensor.Close()
		}
		got <- err
	}()
	remotetest.StartGateway(t, owner.Socket, "--grpc", gw.Addresses.GRPC)
	require.NoError(t, <-got)
}
