package examples_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvrtc"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// This file is the Go code of docs/. TestGoBlocksCompile compares both.

func double(_ context.Context, x int) (int, error) { return 2 * x, nil }

func TestDouble(t *testing.T) {
	functions := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(functions, "double", double))
	owner := endpointtest.Start(t, endpoint.ServerOptions{Registry: functions}) // an owner and a client in this process
	y, err := endpoint.Call[int](t.Context(), owner.Client, "double", 21)
	require.NoError(t, err)
	require.Equal(t, 42, y)
}

type ScaleArgs struct {
	X  *tensor.Tensor `json:"x"`
	By float32        `json:"by"`
}

func newScaleRegistry(dev driver.Device) (*endpoint.Registry, error) {
	functions := endpoint.NewRegistry()
	err := endpoint.Register(functions, "scale", func(ctx context.Context, in ScaleArgs) (*tensor.Tensor, error) {
		x, err := tensor.Data[float32](in.X) // the caller's memory, read-only
		if err != nil {
			return nil, err
		}
		y := make([]float32, len(x))
		for i := range x {
			y[i] = in.By * x[i]
		}
		return tensor.FromSlice(endpoint.ResultDevice(ctx, dev), in.X.Shape(), y) // the endpoint takes ownership
	})
	return functions, err
}

func callScale(ctx context.Context, client *endpoint.Client, x *tensor.Tensor) error {
	y, err := endpoint.Call[*tensor.Tensor](ctx, client, "scale", ScaleArgs{X: x, By: 10})
	if err != nil {
		return err
	}
	return y.Close() // y is the function's memory, mapped read-only
}

// The example of docs/functions.md runs.
func TestScale(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	functions, err := newScaleRegistry(dev)
	require.NoError(t, err)
	require.NoError(t, endpoint.Register(functions, "norm", func(_ context.Context, x float64) (float64, error) { return x, nil }))
	owner := endpointtest.Start(t, endpoint.ServerOptions{Registry: functions, Devices: []driver.Device{dev}})
	x, err := tensor.FromSlice(dev, tensor.Shape{2}, []float32{1, 2})
	require.NoError(t, err)
	defer x.Close()
	require.NoError(t, callScale(t.Context(), owner.Client, x))
	y, err := callWithDeadline(t.Context(), owner.Client)
	require.NoError(t, err)
	require.Equal(t, 3.0, y)
}

func registerBytes(ctx context.Context, functions *endpoint.Registry, server *endpoint.Server) (*endpoint.Follower[endpoint.ModelVersion], error) {
	model, err := server.Follow(ctx, "llm", endpoint.FollowOptions{NoWait: true})
	if err != nil {
		return nil, err
	}
	return model, endpoint.Register(functions, "bytes", func(_ context.Context, _ struct{}) (n int64, err error) {
		err = model.Use(func(v endpoint.ModelVersion) error {
			n = v.StateDict.Bytes()
			return nil
		})
		return n, err
	})
}

// A function of docs/functions.md uses the models of its owner.
func TestBytesOfTheOwnersModel(t *testing.T) {
	functions := endpoint.NewRegistry()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	server, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Devices: []driver.Device{dev}, Registry: functions})
	require.NoError(t, err)
	defer server.Close()
	model, err := registerBytes(t.Context(), functions, server)
	require.NoError(t, err)
	defer model.Close()
	_, err = endpoint.Call[int64](t.Context(), server, "bytes", nil)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	x, err := tensor.FromSlice(dev, tensor.Shape{3}, []float32{1, 2, 3})
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("x", x))
	defer sd.Close()
	changed := model.Changed()
	_, err = server.Publish(t.Context(), "llm", sd, endpoint.PublishOptions{})
	require.NoError(t, err)
	<-changed
	n, err := endpoint.Call[int64](t.Context(), server, "bytes", nil)
	require.NoError(t, err)
	require.EqualValues(t, 12, n)
}

func callWithDeadline(ctx context.Context, client *endpoint.Client) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return endpoint.Call[float64](ctx, client, "norm", 3.0)
}

// request is a request of the service in docs/versions.md.
type request struct{}

func (request) answer(endpoint.ModelVersion) error { return nil }

func validate(context.Context, endpoint.ModelVersion) error { return nil }

func serveRequests(ctx context.Context, client *endpoint.Client, requests <-chan request) error {
	llm, err := client.Follow(ctx, "llm", endpoint.FollowOptions{Validate: validate})
	if err != nil {
		return err
	}
	defer llm.Close()
	for r := range requests {
		if err := llm.Use(r.answer); err != nil {
			return err
		}
	}
	return nil
}

// network is a model in docs/versions.md.
type network struct{ embedding []float32 }

func newNetwork(_ context.Context, v endpoint.ModelVersion) (*network, error) {
	embedding, ok := v.StateDict.Get("embedding")
	if !ok {
		return nil, errors.New("the model has no embedding")
	}
	values, err := tensor.Data[float32](embedding)
	return &network{embedding: values}, err
}

func (n *network) answer(request) error { return nil }

func serveNetwork(ctx context.Context, client *endpoint.Client, requests <-chan request) error {
	llm, err := endpoint.Follow(ctx, client, "llm", newNetwork, endpoint.FollowOptions{})
	if err != nil {
		return err
	}
	defer llm.Close()
	for r := range requests {
		if err := llm.Use(func(n *network) error { return n.answer(r) }); err != nil {
			return err
		}
	}
	return nil
}

func handBack(ctx context.Context, client *endpoint.Client, llm *endpoint.Follower[endpoint.ModelVersion]) error {
	_, err := client.Info(ctx, "llm")
	if !errors.Is(err, endpoint.ErrNotFound) {
		return err // nil if the owner already has the model
	}
	v, err := llm.Current()
	if err != nil {
		return err
	}
	defer v.Close()
	_, err = client.Publish(ctx, "llm", v.Value().StateDict, endpoint.PublishOptions{After: v.Version()})
	return err
}

func serveKept(ctx context.Context, socket string, opts endpoint.ServerOptions) error {
	store, err := keeper.Connect(keeper.Options{Socket: socket + ".keep"})
	if err != nil {
		return err
	}
	defer store.Close()
	opts.Socket, opts.Keep = socket, store
	server, err := endpoint.NewServer(opts)
	if err != nil {
		return err
	}
	if len(server.Adopted()) == 0 {
		slog.Info("no earlier owner has published: publish the first version here")
	}
	return server.Serve(ctx)
}

// The example of docs/versions.md runs twice: the second owner adopts the model of the first.
func upgradeOnSignal(ctx context.Context, server *endpoint.Server, signals <-chan os.Signal) {
	for range signals {
		if err := server.Handover(ctx, endpoint.HandoverOptions{}); err != nil {
			slog.Error("not replaced", "error", err) // Serve continues, unless the successor serves
		}
	}
}

// The owner can serve after a handover that could not begin.
func TestUpgradeOnSignal(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
	require.NoError(t, err)
	signals := make(chan os.Signal, 1)
	signals <- os.Interrupt
	close(signals)
	upgradeOnSignal(t.Context(), server, signals) // the server does not serve yet
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	client, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Wait: true})
	require.NoError(t, err)
	require.NoError(t, client.Close())
	cancel()
	require.NoError(t, <-ended)
}

func TestServeKept(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	socket := filepath.Join(t.TempDir(), "owner.sock")
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { require.NoError(t, keeper.Serve(ctx, keeper.Config{Socket: socket + ".keep"})) })
	require.Eventually(t, func() bool { _, err := os.Stat(socket + ".keep"); return err == nil }, 20*time.Second, time.Millisecond)
	opts := endpoint.ServerOptions{Devices: []driver.Device{dev}}
	client, err := endpoint.NewClient(endpoint.ClientOptions{Socket: socket, Devices: opts.Devices, Wait: true})
	require.NoError(t, err)
	defer client.Close()
	for round := range 2 {
		serving, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- serveKept(serving, socket, opts) }()
		require.NoError(t, client.Connect(ctx))
		if round == 0 {
			_, err := writeVersion(ctx, client, []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{4}}})
			require.NoError(t, err)
		}
		h, err := client.Acquire(ctx, "llm", endpoint.AcquireOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, h.Version())
		require.NoError(t, h.Close())
		end()
		require.NoError(t, <-ended)
		require.Eventually(t, func() bool { return client.State() != endpoint.StateConnected }, 20*time.Second, time.Millisecond)
	}
}

func step(_, _ *module.StateDict) {}

func publishSteps(ctx context.Context, dev *host.Device, client *endpoint.Client, weights *module.StateDict) error {
	pool := host.NewPool(dev, host.PoolOptions{})
	defer pool.Close()
	for range 10 {
		next, err := module.EmptyLike(pool, weights) // write every byte of it
		if err != nil {
			return err
		}
		step(weights, next)
		_, err = client.Publish(ctx, "policy", next, endpoint.PublishOptions{})
		if err = errors.Join(err, next.Close()); err != nil {
			return err
		}
	}
	return nil
}

func fill(*module.StateDict) {}

func writeVersion(ctx context.Context, client *endpoint.Client, specs []module.NamedSpec) (uint64, error) {
	next, err := client.NewVersion(ctx, "llm", specs) // new memory that only this process can see
	if err != nil {
		return 0, err
	}
	defer next.Abort() // no effect after Commit
	fill(next.StateDict())
	next.StateDict().SetCompatibility("fp8, rank 0 of 2") // compared by AcquireOptions.Compatibility
	return next.Commit(ctx, endpoint.PublishOptions{Source: "quantised here"})
}

// The examples of docs/versions.md run: a version written in place, ten steps from a pool, and a follower.
func TestVersions(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	owner := endpointtest.Start(t, endpoint.ServerOptions{Devices: []driver.Device{dev}})
	specs := []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{4}}}
	version, err := writeVersion(t.Context(), owner.Client, specs)
	require.NoError(t, err)
	require.EqualValues(t, 1, version)
	llm, err := owner.Client.Acquire(t.Context(), "llm", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer llm.Close()
	require.NoError(t, publishSteps(t.Context(), dev, owner.Client, llm.StateDict()))
	requests := make(chan request, 1)
	requests <- request{}
	close(requests)
	require.NoError(t, serveRequests(t.Context(), owner.Client, requests))
}

func upload(values []byte) (err error) {
	dev, err := cuda.Open(0) // by ordinal
	if err != nil {
		return err
	}
	defer dev.Close()
	memory, err := dev.AllocMemory(int64(len(values)))
	if err != nil {
		return err
	}
	defer memory.Close()
	_, err = memory.WriteAt(values, 0)
	return err
}

// upload compiles for systems without a GPU and fails there with a reason.
func TestUploadWithoutDriver(t *testing.T) {
	if devices, err := cuda.Devices(); err == nil && len(devices) > 0 {
		require.NoError(t, upload(make([]byte, 64)))
		return
	}
	require.Error(t, upload(make([]byte, 64)))
}

func compileKernel(ctx context.Context, dev *cuda.Device, source string) (*cuda.Module, error) {
	properties, err := dev.Properties()
	if err != nil {
		return nil, err
	}
	cache, err := jitcache.Open(jitcache.Options{})
	if err != nil {
		return nil, err
	}
	binary, err := nvrtc.Compile(ctx, "scale.cu", source, nvrtc.Options{
		Arch:   nvrtc.SM(properties.ComputeMajor, properties.ComputeMinor),
		Format: nvrtc.Cubin,
		Cache:  cache,
	})
	if err != nil {
		return nil, err // scale.cu:3:12: error: identifier "y" is undefined
	}
	return dev.LoadModule(binary.Code)
}

// compileKernel needs a device, on which the example kernel is tested.
var _ = compileKernel

func listProcesses() error {
	session, err := nvml.Open()
	if err != nil {
		return err // no driver, for example
	}
	defer session.Close()
	devices, err := session.Devices()
	if err != nil {
		return err
	}
	for _, d := range devices {
		processes, err := d.Processes()
		if err != nil {
			return err
		}
		fmt.Println(processes) // pid, bytes, kinds of contexts
	}
	return nil
}

// listProcesses compiles for systems without a GPU and fails there with a reason.
func TestListProcessesWithoutDriver(t *testing.T) {
	if session, err := nvml.Open(); err == nil {
		require.NoError(t, session.Close())
		require.NoError(t, listProcesses())
		return
	}
	require.Error(t, listProcesses())
}

// A reader hands a model back to an owner that restarted without it.
func TestHandBack(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	ctx, socket := t.Context(), filepath.Join(t.TempDir(), "owner.sock")
	serve := func() (*endpoint.Server, func()) {
		server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(ctx) }()
		return server, func() { stop(); require.NoError(t, <-ended) }
	}
	first, stop := serve()
	specs := []module.NamedSpec{{Name: "embedding", DType: tensor.Float32, Shape: tensor.Shape{4}}}
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Wait: true})
	require.NoError(t, err)
	defer client.Close()
	for range 3 {
		sd, err := module.New(dev, specs)
		require.NoError(t, err)
		_, err = first.Publish(ctx, "llm", sd, endpoint.PublishOptions{})
		require.NoError(t, err)
		require.NoError(t, sd.Close())
	}
	llm, err := client.Follow(ctx, "llm", endpoint.FollowOptions{RefuseOlder: true})
	require.NoError(t, err)
	defer llm.Close()
	requests := make(chan request, 1)
	requests <- request{}
	close(requests)
	require.NoError(t, serveNetwork(ctx, client, requests))
	stop()
	_, stop = serve()
	defer stop()
	require.Eventually(t, func() bool { return !llm.Status().OwnerLost && handBack(ctx, client, llm) == nil }, 20*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool { return llm.Status().Version == 4 }, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, handBack(ctx, client, llm), "the owner has it")
	require.EqualValues(t, 4, llm.Status().Version)
}

func attachOnGPU(ctx context.Context, name string) error {
	gpu, err := cuda.Open(0) // it must outlive the client and its handles
	if err != nil {
		return err
	}
	defer gpu.Close()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Devices: []driver.Device{gpu}})
	if err != nil {
		return err
	}
	defer client.Close()
	model, err := client.Acquire(ctx, name, endpoint.AcquireOptions{Device: gpu})
	if err != nil {
		return err
	}
	return model.Close()
}

// attachOnGPU needs a GPU, on which the suite of gpu_test tests it. Without a driver it fails with a reason.
func TestAttachOnGPUWithoutDriver(t *testing.T) {
	if devices, err := cuda.Devices(); err == nil && len(devices) > 0 {
		t.Skip("this machine has a GPU, and no owner serves")
	}
	require.Error(t, attachOnGPU(t.Context(), "m"))
}
