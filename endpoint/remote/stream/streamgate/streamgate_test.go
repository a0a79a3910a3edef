package streamgate_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streamgate"
	"github.com/sharedtensor/sharedtensor/module"
)

func TestMain(m *testing.M) {
	remotetest.Main(m, func() []gateway.Component { return []gateway.Component{streamgate.New()} })
}

// modelBytes is several windows of credit, so that a transfer takes a while.
const modelBytes = 64 << 20

func synthesize(t *testing.T, dev *host.Device) *module.StateDict {
	t.Helper()
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 4, Bytes: modelBytes, Seed: 1})
	require.NoError(t, err)
	t.Cleanup(func() { sd.Close() })
	return sd
}

func requireEqual(t *testing.T, want, got *module.StateDict) {
	t.Helper()
	require.Equal(t, want.Names(), got.Names())
	for name, a := range want.All() {
		b, _ := got.Get(name)
		equal, err := a.Equal(b)
		require.NoError(t, err)
		require.True(t, equal, name)
	}
}

func newClient(t *testing.T, gw *remotetest.Gateway, opts stream.ClientOptions) *stream.Client {
	t.Helper()
	conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return stream.NewClient(conn, opts)
}

// attached waits until the gateway has an owner.
func attached(t *testing.T, gw *remotetest.Gateway) {
	t.Helper()
	conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	remotetest.Eventually(t, func() error {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err == nil && answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			err = fmt.Errorf("%s", answer.GetStatus())
		}
		return err
	})
}

// versions returns the versions of a model at an owner.
func versions(t *testing.T, dev *host.Device, owner *remotetest.Owner, name string) (numbers []uint64) {
	t.Helper()
	client, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: owner.Socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer client.Close()
	list, err := client.List(t.Context())
	require.NoError(t, err)
	for _, m := range list {
		if m.Name == name {
			for _, v := range m.Versions {
				numbers = append(numbers, v.Version)
			}
		}
	}
	return numbers
}

// acquire calls use with the owner's model of the given name.
func acquire(t *testing.T, dev *host.Device, owner *remotetest.Owner, name string, use func(*module.StateDict)) {
	t.Helper()
	client, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: owner.Socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer client.Close()
	handle, err := client.Acquire(t.Context(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer handle.Close()
	use(handle.StateDict())
}

// atHalf returns a function for ClientOptions.Progress that calls f once, after half of the bytes.
func atHalf(f func()) func(done, total int64) {
	once := sync.OnceFunc(f)
	return func(done, total int64) {
		if done > total/2 {
			once()
		}
	}
}

// If the owner is killed during a Get, the set arrives completely, because its memory is still mapped. The next Get
// fails, and succeeds again with the next owner.
func TestOwnerKilledDuringGet(t *testing.T) {
	dev := remotetest.OpenHost(t)
	owner := remotetest.StartOwner(t, "--model", fmt.Sprintf("m=%d", modelBytes))
	gw := remotetest.StartGateway(t, owner.Socket)
	attached(t, gw)
	client := newClient(t, gw, stream.ClientOptions{Device: dev, Progress: atHalf(owner.Kill), Attempts: 1})
	set, err := client.Get(t.Context(), stream.Request{Name: "m"})
	require.NoError(t, err)
	defer set.Close()
	requireEqual(t, synthesize(t, dev), set.Tensors)

	begin := time.Now()
	remotetest.Eventually(t, func() error { // the gateway may not have noticed yet
		_, err = client.Get(t.Context(), stream.Request{Name: "m"})
		if err == nil {
			return fmt.Errorf("it came from an owner that is gone")
		}
		return nil
	})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	require.Less(t, time.Since(begin), remotetest.Patience/2, "nobody waits for an owner that is away")

	remotetest.StartOwner(t, "--socket", owner.Socket, "--model", "m=4096")
	attached(t, gw)
	next, err := client.Get(t.Context(), stream.Request{Name: "m"})
	require.NoError(t, err)
	require.Equal(t, int64(4096), next.Tensors.Bytes())
	require.NoError(t, next.Close())
}

// If the owner is killed after it received a complete set and before it answered, the outcome of the Put is unknown.
func TestOwnerKilledDuringPut(t *testing.T) {
	dev := remotetest.OpenHost(t)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	attached(t, gw)
	set := &stream.Set{Name: "m", Tensors: synthesize(t, dev)}
	client := newClient(t, gw, stream.ClientOptions{Device: dev, Attempts: 1, Progress: func(done, total int64) {
		if done == total {
			time.AfterFunc(time.Second, owner.Kill) // the gateway has passed the set on by then
		}
	}})
	owner.Stop()
	_, err := client.Put(t.Context(), set)
	require.ErrorIs(t, err, stream.ErrUnknown)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)

	next := remotetest.StartOwner(t, "--socket", owner.Socket)
	attached(t, gw)
	receipt, err := newClient(t, gw, stream.ClientOptions{Device: dev}).Put(t.Context(), set)
	require.NoError(t, err)
	require.Equal(t, uint64(1), receipt.Version)
	acquire(t, dev, next, "m", func(got *module.StateDict) { requireEqual(t, set.Tensors, got) })
}

// If the gateway is killed halfway through a Put, the owner has no part of the set. A retry reaches the next gateway,
// and the owner has the complete set once.
func TestGatewayKilledDuringPut(t *testing.T) {
	dev := remotetest.OpenHost(t)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	attached(t, gw)
	set := &stream.Set{Name: "m", Tensors: synthesize(t, dev)}
	_, err := newClient(t, gw, stream.ClientOptions{Device: dev, Attempts: 1, Progress: atHalf(gw.Kill)}).Put(t.Context(), set)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.NotErrorIs(t, err, stream.ErrUnknown, "half a set is none")
	require.Empty(t, versions(t, dev, owner, "m"))

	gw = remotetest.StartGateway(t, owner.Socket, "--grpc", gw.Addresses.GRPC)
	attached(t, gw)
	killed := make(chan struct{})
	again := newClient(t, gw, stream.ClientOptions{Device: dev, Attempts: 100, Progress: atHalf(func() { gw.Kill(); close(killed) })})
	var receipt *stream.Receipt
	var put sync.WaitGroup
	put.Go(func() { receipt, err = again.Put(t.Context(), set) })
	<-killed
	remotetest.StartGateway(t, owner.Socket, "--grpc", gw.Addresses.GRPC)
	put.Wait()
	require.NoError(t, err)
	require.Greater(t, receipt.Calls, 1)
	require.Equal(t, []uint64{receipt.Version}, versions(t, dev, owner, "m"))
	acquire(t, dev, owner, "m", func(got *module.StateDict) { requireEqual(t, set.Tensors, got) })
}

// If the gateway is killed while the frozen owner has the complete set, the outcome is unknown to the client, and the
// owner publishes all of it or nothing.
func TestGatewayKilledBeforeAnswer(t *testing.T) {
	dev := remotetest.OpenHost(t)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	attached(t, gw)
	set := &stream.Set{Name: "m", Tensors: synthesize(t, dev)}
	client := newClient(t, gw, stream.ClientOptions{Device: dev, Attempts: 2, Progress: func(done, total int64) {
		if done == total {
			time.AfterFunc(time.Second, gw.Kill)
		}
	}})
	owner.Stop()
	_, err := client.Put(t.Context(), set)
	owner.Continue()
	require.ErrorIs(t, err, stream.ErrUnknown)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	if list := versions(t, dev, owner, "m"); len(list) > 0 {
		require.Len(t, list, 1)
		acquire(t, dev, owner, "m", func(got *module.StateDict) { requireEqual(t, set.Tensors, got) })
	}
}
