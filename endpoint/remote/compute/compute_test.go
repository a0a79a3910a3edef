package compute_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestCompute(t *testing.T) {
	dev := remotetest.OpenHost(t)
	s, address := start(t, compute.ServerOptions{Function: double})
	c := dial(t, address, compute.ClientOptions{})
	out, err := c.Compute(t.Context(), floats(t, dev, 1, 2, 3))
	require.NoError(t, err)
	require.Equal(t, "tensor([2., 4., 6.])", out.String())
	require.NoError(t, out.Close())
	st := s.Statistics("")
	require.Equal(t, uint64(1), st.Requests)
	require.Equal(t, uint64(12), st.BytesIn)
	require.Equal(t, 1, st.Compute.Count)
	cs := c.Statistics()
	require.Equal(t, uint64(1), cs.Attempts)
	require.Positive(t, cs.AvgNetwork)
	info, err := c.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), info.Requests)
	require.Equal(t, compute.Protocol, info.Custom["protocol"])
	require.Equal(t, "cpu", info.Device)
}

// Every element type and kind of shape is sent and returned unchanged, in one message and in chunks.
func TestEveryType(t *testing.T) {
	dev := remotetest.OpenHost(t)
	_, address := start(t, compute.ServerOptions{Function: identity})
	for _, from := range []int64{1 << 30, 1} {
		c := dial(t, address, compute.ClientOptions{StreamFrom: from})
		for _, dtype := range tensor.DTypes() {
			for _, shape := range []tensor.Shape{{}, {0, 4}, {3, 44}, {2048, 1026}} {
				x, err := tensor.Zeros(dev, dtype, shape)
				require.NoError(t, err)
				raw, err := tensor.RawData(x)
				require.NoError(t, err)
				for i := range raw {
					raw[i] = byte(i * 11)
				}
				out, err := c.Compute(t.Context(), x)
				require.NoError(t, err, "%s %v", dtype, shape)
				equal, err := x.Equal(out)
				require.NoError(t, err)
				require.True(t, equal, "%s %v", dtype, shape)
				out.Close()
				x.Close()
			}
		}
	}
}

// Data is compressed only if that makes it smaller.
func TestCompression(t *testing.T) {
	dev := remotetest.OpenHost(t)
	s, address := start(t, compute.ServerOptions{Function: identity})
	zeros, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{1 << 18})
	require.NoError(t, err)
	defer zeros.Close()
	noise, err := tensor.Zeros(dev, tensor.Int32, tensor.Shape{1 << 18})
	require.NoError(t, err)
	defer noise.Close()
	data, err := tensor.Data[int32](noise)
	require.NoError(t, err)
	for i, x := 0, uint32(1); i < len(data); i++ {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		data[i] = int32(x)
	}
	sent := uint64(0)
	for _, compression := range []string{compute.Zlib, compute.Zstd} {
		c := dial(t, address, compute.ClientOptions{Compression: compression, CompressLocal: true})
		for _, x := range []*tensor.Tensor{zeros, noise} {
			out, err := c.Compute(t.Context(), x)
			require.NoError(t, err)
			equal, err := x.Equal(out)
			require.NoError(t, err)
			require.True(t, equal)
			out.Close()
			st := s.Statistics("")
			if x == zeros {
				require.Less(t, st.BytesIn-sent, uint64(10_000), compression)
			} else {
				require.Equal(t, uint64(1<<20), st.BytesIn-sent, compression)
			}
			sent = st.BytesIn
		}
	}
	require.Less(t, s.Statistics("").BytesOut, uint64(2<<20+20_000))
}

// A failed call is retried as often as its kind of failure allows.
func TestRetry(t *testing.T) {
	dev := remotetest.OpenHost(t)
	for _, c := range []struct {
		code     codes.Code
		attempts int
	}{
		{codes.Unavailable, 3}, {codes.Aborted, 3}, {codes.Unknown, 3}, {codes.DeadlineExceeded, 3},
		{codes.InvalidArgument, 1}, {codes.Unauthenticated, 1}, {codes.PermissionDenied, 1}, {codes.NotFound, 1}, {codes.Unimplemented, 1},
		{codes.Internal, 1}, {codes.ResourceExhausted, 1}, {codes.FailedPrecondition, 1},
	} {
		_, address := start(t, compute.ServerOptions{Function: compute.Func(func(context.Context, *tensor.Tensor) (*tensor.Tensor, error) {
			return nil, status.Error(c.code, "as asked for")
		})})
		client := dial(t, address, compute.ClientOptions{Retry: compute.Retry{Initial: time.Millisecond}})
		_, err := client.Compute(t.Context(), floats(t, dev, 1))
		require.Equal(t, c.code, status.Code(err))
		require.ErrorContains(t, err, "as asked for")
		require.Equal(t, uint64(c.attempts), client.Statistics().Attempts, "%s", c.code)
		require.Equal(t, uint64(1), client.Statistics().Failures)

		once := dial(t, address, compute.ClientOptions{Retry: compute.Retry{Initial: time.Millisecond}, NotIdempotent: true})
		_, err = once.Compute(t.Context(), floats(t, dev, 1))
		require.Error(t, err)
		require.Equal(t, uint64(1), once.Statistics().Attempts, "a function that ran is not run again")
		unknown := slices.Contains([]codes.Code{codes.Unavailable, codes.Unknown, codes.DeadlineExceeded}, c.code)
		require.Equal(t, unknown, errors.Is(err, compute.ErrUnknown), "%s", c.code)
	}
}

func TestRetrySucceedsOnThirdAttempt(t *testing.T) {
	dev := remotetest.OpenHost(t)
	var calls atomic.Int32
	_, address := start(t, compute.ServerOptions{Function: compute.Func(func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
		if calls.Add(1) < 3 {
			return nil, status.Error(codes.Unavailable, "not yet")
		}
		return in.Alias(), nil
	})})
	c := dial(t, address, compute.ClientOptions{Retry: compute.Retry{Initial: time.Millisecond, Fixed: true}})
	r, err := c.ComputeTimed(t.Context(), "", floats(t, dev, 1))
	require.NoError(t, err)
	defer r.Tensor.Close()
	require.Equal(t, 3, r.Attempts)
}

// The attempts end when the budget does not allow another one.
func TestBudget(t *testing.T) {
	dev := remotetest.OpenHost(t)
	_, address := start(t, compute.ServerOptions{Function: compute.Func(func(context.Context, *tensor.Tensor) (*tensor.Tensor, error) {
		return nil, status.Error(codes.Unavailable, "never")
	})})
	c := dial(t, address, compute.ClientOptions{Budget: 200 * time.Millisecond, Retry: compute.Retry{Attempts: 100, Initial: time.Hour}})
	begin := time.Now()
	_, err := c.Compute(t.Context(), floats(t, dev, 1))
	require.ErrorContains(t, err, "never")
	require.Less(t, time.Since(begin), 10*time.Second)
	require.Equal(t, uint64(1), c.Statistics().Attempts)
}

// A request over the queue limit is refused, and the error shows that the function did not run.
func TestOverload(t *testing.T) {
	dev := remotetest.OpenHost(t)
	running, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	_, address := start(t, compute.ServerOptions{Workers: 1, Queue: 1, Function: compute.Func(func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
		once.Do(func() { close(running) })
		<-release
		return in.Alias(), nil
	})})
	x := floats(t, dev, 1)
	c := dial(t, address, compute.ClientOptions{Retry: compute.Retry{Attempts: 1}})
	errs := make(chan error, 8)
	call := func() {
		out, err := c.Compute(context.Background(), x)
		if err == nil {
			out.Close()
		}
		errs <- err
	}
	go call()
	<-running
	for range 7 {
		go call()
	}
	refused := 0
	for range 6 {
		err := <-errs
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "too many requests wait")
		refused++
	}
	close(release)
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)

	// The client of a function that must not run twice also retries, because the error excludes a first run.
	again := dial(t, address, compute.ClientOptions{NotIdempotent: true, Retry: compute.Retry{Initial: time.Millisecond}})
	out, err := again.Compute(t.Context(), x)
	require.NoError(t, err)
	out.Close()
}

// Requests with data, shape and metadata that contradict each other are refused.
func TestContradictoryRequestsAreRefused(t *testing.T) {
	_, address := start(t, compute.ServerOptions{Function: identity, MessageBytes: 1 << 20, StreamBytes: 2 << 20})
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	rpc := computepb.NewComputeServiceClient(conn)
	yes, id := true, "f"
	for name, c := range map[string]struct {
		request *computepb.ComputeRequest
		code    codes.Code
	}{
		"short":       {&computepb.ComputeRequest{Shape: []int32{2}, Data: make([]byte, 7)}, codes.InvalidArgument},
		"long":        {&computepb.ComputeRequest{Shape: []int32{2}, Data: make([]byte, 9)}, codes.InvalidArgument},
		"negative":    {&computepb.ComputeRequest{Shape: []int32{-2}, Data: make([]byte, 8)}, codes.InvalidArgument},
		"overflow":    {&computepb.ComputeRequest{WideShape: []int64{1 << 40, 1 << 40}}, codes.InvalidArgument},
		"huge":        {&computepb.ComputeRequest{Shape: []int32{1 << 30}}, codes.ResourceExhausted},
		"type":        {&computepb.ComputeRequest{Shape: []int32{1}, Data: make([]byte, 4), Metadata: map[string]string{"dtype": "object"}}, codes.InvalidArgument},
		"compression": {&computepb.ComputeRequest{Shape: []int32{1}, Data: make([]byte, 4), Metadata: map[string]string{"compression": "pickle"}}, codes.Unimplemented},
		"not zlib":    {&computepb.ComputeRequest{Shape: []int32{1}, Data: make([]byte, 4), Metadata: map[string]string{"compression": "zlib"}}, codes.InvalidArgument},
		"not zstd":    {&computepb.ComputeRequest{Shape: []int32{1}, Data: make([]byte, 4), Metadata: map[string]string{"compression": "zstd"}}, codes.InvalidArgument},
		"cache":       {&computepb.ComputeRequest{Shape: []int32{1}, Data: make([]byte, 4), UseCache: &yes}, codes.Unimplemented},
		"training":    {&computepb.ComputeRequest{Shape: []int32{1}, Data: make([]byte, 4), ForwardId: &id}, codes.Unimplemented},
	} {
		_, err := rpc.Compute(t.Context(), c.request)
		require.Equal(t, c.code, status.Code(err), "%s: %v", name, err)
	}
	for name, c := range map[string]struct {
		requests []*computepb.ComputeRequest
		code     codes.Code
	}{
		"huge":  {[]*computepb.ComputeRequest{{Shape: []int32{1 << 30}}}, codes.ResourceExhausted},
		"short": {[]*computepb.ComputeRequest{{Shape: []int32{2}, Data: make([]byte, 4)}}, codes.InvalidArgument},
		"long":  {[]*computepb.ComputeRequest{{Shape: []int32{2}, Data: make([]byte, 4)}, {Data: make([]byte, 5)}}, codes.InvalidArgument},
		"empty": {[]*computepb.ComputeRequest{{Shape: []int32{2}, Data: make([]byte, 4)}, {}, {}}, codes.InvalidArgument},
	} {
		call, err := rpc.ComputeStream(t.Context())
		require.NoError(t, err)
		for _, r := range c.requests {
			call.Send(r)
		}
		call.CloseSend()
		_, err = call.Recv()
		require.Equal(t, c.code, status.Code(err), "stream: %s: %v", name, err)
	}
}

// part is a function that implements every optional interface.
type part struct {
	mu                 sync.Mutex
	setup, check, down error
	tornDown           bool
}

func (p *part) Compute(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	return in.Alias(), nil
}
func (p *part) Setup(context.Context) error { return p.setup }
func (p *part) Info() map[string]string     { return map[string]string{"name": "part", "device": "cuda:0"} }
func (p *part) Teardown(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tornDown = true
	return p.down
}
func (p *part) Check(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.check
}

// All three health checks follow the state of the function, and Watch reports its changes.
func TestHealth(t *testing.T) {
	dev := remotetest.OpenHost(t)
	f := &part{}
	_, address := start(t, compute.ServerOptions{Function: f})
	c := dial(t, address, compute.ClientOptions{})
	info, err := c.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, "cuda:0", info.Device)
	require.Equal(t, "part", info.Custom["name"])

	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: compute.ServiceName})
	require.NoError(t, err)
	expect := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		for {
			r, err := watch.Recv()
			require.NoError(t, err)
			if r.GetStatus() == want {
				return
			}
		}
	}
	expect(grpc_health_v1.HealthCheckResponse_SERVING)
	f.mu.Lock()
	f.check = errors.New("the weights are gone")
	f.mu.Unlock()
	expect(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	require.ErrorContains(t, c.Health(t.Context()), "the weights are gone")
	f.mu.Lock()
	f.check = nil
	f.mu.Unlock()
	expect(grpc_health_v1.HealthCheckResponse_SERVING)
	out, err := c.Compute(t.Context(), floats(t, dev, 1))
	require.NoError(t, err)
	out.Close()
}

func TestSetupThatFails(t *testing.T) {
	_, address := start(t, compute.ServerOptions{Function: &part{setup: errors.New("no such file")}})
	_, err := compute.Dial(t.Context(), address, compute.ClientOptions{})
	require.ErrorIs(t, err, compute.ErrNotReady)
	require.ErrorContains(t, err, "no such file")
}

// A stopping server completes the running request, calls Teardown after it, and refuses new requests.
func TestGracefulStop(t *testing.T) {
	dev := remotetest.OpenHost(t)
	f := &part{}
	running, release := make(chan struct{}), make(chan struct{})
	slow := compute.Func(func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
		close(running)
		<-release
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.tornDown {
			return nil, errors.New("torn down while it ran")
		}
		return in.Alias(), nil
	})
	s, address := start(t, compute.ServerOptions{Functions: map[string]compute.Function{"slow": slow, "part": f}})
	c := dial(t, address, compute.ClientOptions{Model: "slow", Retry: compute.Retry{Attempts: 1}})
	result := make(chan error, 1)
	x := floats(t, dev, 1)
	go func() {
		out, err := c.Compute(context.Background(), x)
		if err == nil {
			out.Close()
		}
		result <- err
	}()
	<-running
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(context.Background()) }()
	require.Eventually(t, func() bool { return c.Health(t.Context()) != nil }, 5*time.Second, time.Millisecond)
	_, err := c.ComputeTimed(t.Context(), "part", floats(t, dev, 1))
	require.Equal(t, codes.Unavailable, status.Code(err))
	close(release)
	require.NoError(t, <-result)
	require.NoError(t, <-stopped)
	require.True(t, f.tornDown)
}

func TestFunctionThatPanics(t *testing.T) {
	dev := remotetest.OpenHost(t)
	_, address := start(t, compute.ServerOptions{Function: compute.Func(func(context.Context, *tensor.Tensor) (*tensor.Tensor, error) { panic("oops") })})
	_, err := dial(t, address, compute.ClientOptions{}).Compute(t.Context(), floats(t, dev, 1))
	require.Equal(t, codes.Internal, status.Code(err))
	require.ErrorContains(t, err, "oops")
}

// Endpoints of an owner are called by their names.
func TestEndpoints(t *testing.T) {
	dev := remotetest.OpenHost(t)
	type in struct {
		X  *tensor.Tensor `json:"x"`
		By float32        `json:"by,omitempty"`
	}
	type two struct{ A, B *tensor.Tensor }
	type out struct {
		Y     *tensor.Tensor `json:"y"`
		Steps int            `json:"steps"`
	}
	functions := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(functions, "bare", func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return x.Copy(dev)
	}))
	require.NoError(t, endpoint.Register(functions, "fields", func(_ context.Context, a in) (out, error) {
		y, err := a.X.Copy(dev)
		return out{y, 7}, err
	}))
	require.NoError(t, endpoint.Register(functions, "two", func(context.Context, two) (*tensor.Tensor, error) { return nil, nil }))
	require.NoError(t, endpoint.Register(functions, "fails", func(context.Context, in) (*tensor.Tensor, error) { return nil, errors.New("no luck") }))
	socket := filepath.Join(t.TempDir(), "s.sock")
	owner, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Registry: functions})
	require.NoError(t, err)
	defer owner.Close()
	go owner.Serve(context.Background())
	caller, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, OverSocket: true})
	require.NoError(t, err)
	defer caller.Close()

	names := &compute.Endpoints{Find: func(string) (endpoint.Caller, error) { return caller, nil }, Device: dev}
	_, address := start(t, compute.ServerOptions{Lookup: names.Lookup})
	c := dial(t, address, compute.ClientOptions{})
	x := floats(t, dev, 1, 2, 3)
	for _, name := range []string{"bare", "fields", "bare"} {
		r, err := c.ComputeTimed(t.Context(), name, x)
		require.NoError(t, err, name)
		equal, err := x.Equal(r.Tensor)
		require.NoError(t, err)
		require.True(t, equal)
		r.Tensor.Close()
	}
	for name, code := range map[string]codes.Code{"two": codes.InvalidArgument, "nobody": codes.NotFound, "fails": codes.Internal, "": codes.NotFound} {
		_, err := c.ComputeTimed(t.Context(), name, x)
		require.Equal(t, code, status.Code(err), "%q: %v", name, err)
	}
}

// A Python program that acts like splitlearn-comm's simple client works, with and without its compression.
func TestPythonClient(t *testing.T) {
	python := pytest.Python(t, "grpc_tools", "torch")
	_, address := start(t, compute.ServerOptions{Function: double, Name: "double"})
	cmd := exec.Command(python, "testdata/compute_client.py", address)
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+pytest.Stubs(t, python, "computepb/compute.proto"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, want := range []string{"health: ok", "service: double 1.0.0", "computed: torch.Size([1, 10, 768])", "compressed: equal", "typed: torch.int64", "deflate: equal", "refused: UNIMPLEMENTED"} {
		require.Contains(t, string(out), want)
	}
	t.Logf("%s", out)
}
