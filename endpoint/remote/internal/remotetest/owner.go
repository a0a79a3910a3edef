package remotetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Owner is an owner in a separate process.
type Owner struct {
	*Process
	Socket string
}

// StartOwner starts an owner with the functions of Functions and Models. Arguments:
//
//	--model NAME=BYTES   publishes a generated model of four tensors
//	--file NAME=PATH     publishes the model in a file
//	--socket PATH        sets the socket, which is in a folder of the test by default
//	--traces PATH        writes the trace of each call to a file
//	--without FEATURE    disables a feature of the protocol, as in an owner of an earlier version
func StartOwner(t testing.TB, args ...string) *Owner {
	t.Helper()
	socket := ""
	for i, arg := range args {
		if arg == "--socket" {
			socket = args[i+1]
		}
	}
	if socket == "" {
		socket = Socket(t)
		args = append(args, "--socket", socket)
	}
	p, line := start(t, "owner", args...)
	if line == "" {
		t.Fatalf("the owner did not start; its log:\n%s", p.log)
	}
	return &Owner{p, socket}
}

// Socket returns a path for an owner that is short enough for a Unix socket.
func Socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "owner-0.sock")
}

func ownerMain(args []string) (err error) {
	set := pflag.NewFlagSet("owner", pflag.ContinueOnError)
	socket := set.String("socket", "", "")
	models := set.StringArray("model", nil, "")
	files := set.StringArray("file", nil, "")
	traces := set.String("traces", "", "")
	without := set.StringArray("without", nil, "")
	if err := set.Parse(args); err != nil {
		return err
	}
	transport.Disable(*without)
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	registry := endpoint.NewRegistry()
	if err := errors.Join(Functions(registry, dev), Models(registry, dev)); err != nil {
		return err
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: *socket, Devices: []driver.Device{dev}, Registry: registry, Label: "test owner",
		Interceptors: tracesInto(*traces),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := publishModels(server, dev, *models, *files); err != nil {
		return err
	}
	ctx, stop := untilTerminated()
	defer stop()
	go func() {
		<-ctx.Done()
		_ = server.Close() // best effort: Serve returns the error
	}()
	fmt.Println("ready")
	if err := server.Serve(context.Background()); !errors.Is(err, endpoint.ErrServerClosed) {
		return err
	}
	return nil
}

// tracesInto writes the trace of each call to a file, one line each: function, kind, the caller's trace and span,
// state.
func tracesInto(path string) []endpoint.Interceptor {
	if path == "" {
		return nil
	}
	note := func(ctx context.Context, call *endpoint.Invocation) (context.Context, func(error)) {
		parent, _ := intercept.TraceFrom(ctx)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintln(f, call.Endpoint, call.Kind, parent.TraceID, parent.SpanID, parent.State)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return ctx, nil
	}
	return []endpoint.Interceptor{intercept.Tracing(note)}
}

func publishModels(server *endpoint.Server, dev driver.Device, models, files []string) error {
	ctx := context.Background()
	for _, text := range models {
		at := strings.LastIndexByte(text, '=')
		name, size := text[:max(at, 0)], text[at+1:]
		bytes, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			return err
		}
		sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 4, Bytes: bytes, Seed: 1})
		if err != nil {
			return err
		}
		_, err = server.Publish(ctx, name, sd, endpoint.PublishOptions{})
		if err = errors.Join(err, sd.Close()); err != nil {
			return err
		}
	}
	for _, text := range files {
		name, path, _ := strings.Cut(text, "=")
		sd, err := module.Load(ctx, dev, path, module.LoadOptions{})
		if err != nil {
			return err
		}
		_, err = server.Publish(ctx, name, sd, endpoint.PublishOptions{Source: path})
		if err = errors.Join(err, sd.Close()); err != nil {
			return err
		}
	}
	return nil
}

// AddArgs holds the arguments of add.
type AddArgs struct {
	A int `json:"a"`
	B int `json:"b,omitempty"`
}

// ScaleArgs holds the arguments of scale.
type ScaleArgs struct {
	X      *tensor.Tensor `json:"x"`
	Factor float32        `json:"factor,omitempty"`
}

// WorkArgs holds the arguments of work.
type WorkArgs struct {
	Steps int `json:"steps"`
	// PaceMS is the duration of a step in milliseconds.
	PaceMS int `json:"pace_ms,omitempty"`
}

// Functions registers functions for tests:
//
//	add {a, b} → a+b               scale {x, factor} → x·factor, of float32
//	linger X → X, after its first element in milliseconds
//	sum STATE_DICT → the sum of its elements, of float32
//	echo VALUE → VALUE, cached     fail TEXT → an error with that text
//	work {steps, pace_ms} → steps, as a task with progress
//	count N → 0, 1, … N-1, as a stream
//	zeros N → a tensor of N float32
//	sleep MS → nothing; ends early if it is cancelled
func Functions(r *endpoint.Registry, dev driver.Device) error {
	return errors.Join(
		endpoint.Register(r, "add", func(_ context.Context, in AddArgs) (int, error) { return in.A + in.B, nil }),
		endpoint.Register(r, "scale", func(_ context.Context, in ScaleArgs) (*tensor.Tensor, error) { return scale(dev, in) }),
		endpoint.Register(r, "linger", linger),
		endpoint.Register(r, "sum", sum),
		endpoint.Register(r, "echo", func(_ context.Context, in string) (string, error) { return in, nil }, endpoint.Cached()),
		endpoint.Register(r, "fail", func(_ context.Context, in string) (int, error) { return 0, errors.New(in) }),
		endpoint.Register(r, "work", work, endpoint.AsTask()),
		endpoint.RegisterStream(r, "count", count),
		endpoint.Register(r, "zeros", func(_ context.Context, n int64) (*tensor.Tensor, error) {
			t, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{n})
			if err != nil {
				return nil, err
			}
			return t, t.Zero()
		}),
		endpoint.Register(r, "sleep", func(ctx context.Context, ms int) (struct{}, error) {
			select {
			case <-ctx.Done():
				return struct{}{}, context.Cause(ctx)
			case <-time.After(time.Duration(ms) * time.Millisecond):
				return struct{}{}, nil
			}
		}),
	)
}

func scale(dev driver.Device, in ScaleArgs) (*tensor.Tensor, error) {
	if in.X == nil {
		return nil, fmt.Errorf("%w: x is missing", driver.ErrInvalid)
	}
	values, err := tensor.Float32s(in.X)
	if err != nil {
		return nil, err
	}
	for i := range values {
		values[i] *= in.Factor
	}
	return tensor.FromSlice(dev, in.X.Shape(), values)
}

func linger(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	values, err := tensor.Float32s(in)
	if err != nil || len(values) == 0 {
		return nil, errors.Join(driver.ErrInvalid, err)
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(time.Duration(values[0]) * time.Millisecond):
		return in.Alias(), nil
	}
}

func sum(_ context.Context, sd *module.StateDict) (float64, error) {
	var total float64
	for _, t := range sd.All() {
		values, err := tensor.Float32s(t)
		if err != nil {
			return 0, err
		}
		for _, v := range values {
			total += float64(v)
		}
	}
	return total, nil
}

func work(ctx context.Context, in WorkArgs) (int, error) {
	for i := range in.Steps {
		task.Report(ctx, int64(i), int64(in.Steps), fmt.Sprintf("step %d", i))
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(time.Duration(in.PaceMS) * time.Millisecond):
		}
	}
	return in.Steps, nil
}

func count(_ context.Context, n int) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i := range n {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// OpenHost opens host memory until the test ends.
func OpenHost(t testing.TB) *host.Device {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// Dial connects to an owner until the test ends.
func Dial(t testing.TB, socket string, dev driver.Device) *endpoint.Client {
	t.Helper()
	client, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}
