package engine_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// raised is one failure and the expected error at the caller.
type raised struct {
	what string
	code message.Code
	typ  string
	is   []error
	not  []error
}

var raisings = []raised{
	{"protocol", message.CodeProtocol, "protocol", []error{endpoint.ErrProtocol}, nil},
	{"registered", message.CodeProvider, "registered", []error{endpoint.ErrRegistered}, []error{endpoint.ErrNoEndpoint, endpoint.ErrConfiguration}},
	{"configuration", message.CodeConfiguration, "configuration", []error{endpoint.ErrConfiguration, endpoint.ErrInvalid}, []error{endpoint.ErrCapability}},
	{"environment", message.CodeConfiguration, "configuration", []error{endpoint.ErrConfiguration, endpoint.ErrInvalid}, nil},
	{"channel", message.CodeCapability, "capability", []error{endpoint.ErrCapability, message.ErrEncoding, message.ErrType}, []error{endpoint.ErrInvalid}},
	{"memory of another kind", message.CodeCapability, "capability", []error{endpoint.ErrCapability, errors.ErrUnsupported}, nil},
	{"memory that cannot be exported", message.CodeCapability, "capability", []error{endpoint.ErrCapability, errors.ErrUnsupported}, nil},
	{"out of memory", message.CodeOutOfMemory, "out of memory", []error{driver.ErrOutOfMemory}, []error{endpoint.ErrPanic}},
	{"timeout", message.CodeDeadlineExceeded, "deadline exceeded", []error{context.DeadlineExceeded}, []error{os.ErrDeadlineExceeded}},
	{"panic", message.CodeInternal, "panic", []error{endpoint.ErrPanic, driver.ErrOutOfMemory}, []error{task.ErrNotFound}},
	{"file", message.CodeNotFound, "not exist", []error{os.ErrNotExist}, []error{endpoint.ErrNotFound, endpoint.ErrPanic}},
	{"else", message.CodeInternal, "*errors.errorString", nil, []error{endpoint.ErrPanic}},
}

// classOf returns the class of a received error.
func classOf(t *testing.T, err error) (message.Code, string) {
	t.Helper()
	var e *message.Error
	require.ErrorAs(t, err, &e)
	return e.Code, e.Type
}

// paths returns the ways to an owner: a client of another process, the owner itself, and a client of another owner in
// this process.
func paths(t *testing.T) map[string]endpoint.Caller {
	t.Helper()
	c, dev, _ := fixture.ClientOfOwner(t)
	here := func() *endpoint.Server {
		return fixture.Serve(t, endpoint.ServerOptions{Registry: fixture.Registry(dev, &fixture.Counters{}), Logger: fixture.Discard()})
	}
	near, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: here().Socket(), Devices: fixture.DriversOf(dev)})
	require.NoError(t, err)
	t.Cleanup(func() { near.Close() })
	return map[string]endpoint.Caller{"socket": c, "direct": here(), "near": near}
}

// Every class of error keeps its class, over a socket from another process and within the process, from tasks and
// calls.
func TestErrorOfFunctionCrosses(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	ctx := context.Background()
	for path, c := range paths(t) {
		for _, r := range raisings {
			t.Run(path+"/"+r.what, func(t *testing.T) {
				err := c.Call(ctx, "raise", r.what, nil)
				code, typ := classOf(t, err)
				require.Equal(t, r.code, code)
				require.Equal(t, r.typ, typ)
				direct := err
				err = c.Call(ctx, "raise task", r.what, nil)
				code, typ = classOf(t, err)
				for _, err := range []error{direct, err} {
					for _, is := range append(r.is, r.code) {
						require.ErrorIs(t, err, is)
					}
					for _, not := range r.not {
						require.NotErrorIs(t, err, not)
					}
				}
				if r.what == "channel" || strings.HasPrefix(r.what, "memory") {
					return // the task may have a result that just cannot be shared
				}
				require.Equal(t, message.CodeTask, code)
				require.Equal(t, "failed", typ)
				require.ErrorIs(t, err, task.ErrFailed)
				var e *message.Error
				require.ErrorAs(t, err, &e)
				cause := e.Details().Cause
				require.Equal(t, r.code, cause.Code)
				require.Equal(t, r.typ, cause.Type)
				require.NotEmpty(t, cause.Message)
			})
		}
	}
}

// The classes of errors of requests themselves.
func TestErrorOfRequests(t *testing.T) {
	t.Parallel()
	fixture.HostOnly(t, "the device makes no difference to it")
	ctx := context.Background()
	dev := fixture.Device(t)
	for path, c := range paths(t) {
		t.Run(path, func(t *testing.T) {
			err := c.Call(ctx, "nothing", nil, nil)
			code, typ := classOf(t, err)
			require.Equal(t, message.CodeProvider, code)
			require.Equal(t, "not registered", typ)
			require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
			require.NotErrorIs(t, err, endpoint.ErrRegistered)

			err = c.Call(ctx, "double", map[string]int{"M": 1}, nil)
			code, _ = classOf(t, err)
			require.Equal(t, message.CodeSerialization, code)
			require.ErrorIs(t, err, message.ErrEncoding)

			for _, in := range []any{make(chan int), []any{make(chan int)}, tensor.Tensor{}} {
				require.ErrorIs(t, c.Call(ctx, "double", in, nil), message.CodeCapability)
				require.ErrorIs(t, c.Call(ctx, "double", in, nil), endpoint.ErrCapability)
			}
			for _, why := range []string{"memory of another device", "memory that cannot be exported"} {
				x, err := tensor.FromSlice(fixture.Foreign{Device: dev, Why: why}, tensor.Shape{1}, []float32{1})
				require.NoError(t, err)
				err = c.Call(ctx, "sum", fixture.ScaleIn{X: x}, nil)
				require.ErrorIs(t, err, message.CodeCapability, why)
				require.ErrorIs(t, err, errors.ErrUnsupported, why)
				require.NoError(t, x.Close())
			}

			for _, name := range []string{"exit", "exit uncached", "exit task"} {
				err = c.Call(ctx, name, nil, nil)
				require.ErrorIs(t, err, endpoint.ErrGoexit, name)
				require.NotErrorIs(t, err, endpoint.ErrPanic, name)
			}

			_, err = c.Task("nothing").Info(ctx)
			code, typ = classOf(t, err)
			require.Equal(t, message.CodeTask, code)
			require.Equal(t, "not found", typ)
			require.ErrorIs(t, err, task.ErrNotFound)
			require.NotErrorIs(t, err, endpoint.ErrNotFound)

			server, err := c.ServerInfo(ctx)
			require.NoError(t, err)
			_, err = c.ObjectInfo(ctx, "nothing")
			code, typ = classOf(t, err)
			require.Equal(t, message.CodeStaleHandle, code)
			require.Equal(t, "stale", typ)
			var stale *endpoint.StaleError
			require.ErrorAs(t, err, &stale)
			require.Equal(t, endpoint.StaleError{ObjectID: "nothing", ServerID: server.ID, Reason: endpoint.StaleObjectMissing}, *stale)
			for id, reason := range map[string]endpoint.StaleReason{
				"": endpoint.StaleObjectMissing, server.ID: endpoint.StaleObjectMissing, "another": endpoint.StaleServerMismatch,
			} {
				_, err = c.EnsureLive(ctx, "nothing", id)
				require.ErrorIs(t, err, message.CodeStaleHandle)
				require.ErrorAs(t, err, &stale)
				require.Equal(t, reason, stale.Reason)
			}
		})
	}
}

// If frames are too small for an error, its class still arrives, and the connection continues.
func TestErrorFitsSmallestFrame(t *testing.T) {
	t.Parallel()
	fixture.HostOnly(t, "the device makes no difference to it")
	ctx := context.Background()
	s := fixture.Serve(t, endpoint.ServerOptions{
		Registry: fixture.Registry(fixture.Device(t), &fixture.Counters{}), Logger: fixture.Discard(), Limits: endpoint.Limits{Wire: wire.Limits{Frame: 2048}},
	})
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	for range 2 {
		err = c.Call(ctx, "raise", "long", nil)
		code, typ := classOf(t, err)
		require.Equal(t, message.CodeInternal, code)
		require.Equal(t, "*errors.errorString", typ)
		require.ErrorIs(t, c.Call(ctx, "raise", "out of memory", nil), driver.ErrOutOfMemory)
	}
}

// A result that cannot be shared is refused only to the client that cannot import it.
func TestErrorOfUnmappableMemory(t *testing.T) {
	t.Parallel()
	fixture.HostOnly(t, "the device makes no difference to it")
	c, _, _ := fixture.ClientOfOwner(t)
	none, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: c.Socket()})
	require.NoError(t, err)
	defer none.Close()
	err = none.Call(context.Background(), "plain model", fixture.ModelIn{Size: 1}, new(any))
	require.ErrorIs(t, err, message.CodeCapability)
	require.ErrorIs(t, err, endpoint.ErrCapability)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// Errors about very long texts are cut. The connection stays open, and other information remains.
func TestErrorIsCut(t *testing.T) {
	t.Parallel()
	fixture.HostOnly(t, "the device makes no difference to it")
	ctx := context.Background()
	name := strings.Repeat("\x01", 17<<20) // quoted, it is larger than a frame
	for path, c := range paths(t) {
		t.Run(path, func(t *testing.T) {
			waiting := make(chan error, 1)
			go func() { waiting <- c.Call(ctx, "gated run", fixture.GateIn{Gate: path}, nil) }()
			err := c.Call(ctx, name, nil, nil)
			require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
			require.Less(t, len(err.Error()), 2*message.MaxErrorMessage)
			_, err = c.Task(name[:1<<20]).Info(ctx)
			require.ErrorIs(t, err, task.ErrNotFound)
			require.Less(t, len(err.Error()), 2*message.MaxErrorMessage)
			_, err = c.ObjectInfo(ctx, name[:1<<20])
			require.ErrorIs(t, err, endpoint.ErrStale)
			require.Less(t, len(err.Error()), 2*message.MaxErrorMessage)
			for range 3 {
				err = c.Call(ctx, "raise task", "long", nil)
				require.ErrorIs(t, err, task.ErrFailed)
				require.ErrorContains(t, err, "bytes left out")
			}
			tasks, err := c.Tasks(ctx, endpoint.TaskFilter{States: []endpoint.TaskState{endpoint.TaskFailed}})
			require.NoError(t, err)
			require.Len(t, tasks, 3)
			for _, info := range tasks {
				require.ErrorIs(t, info.Err(), task.ErrFailed)
				require.Equal(t, "*errors.errorString", info.ErrorType)
				require.Less(t, len(info.Error), 600)
				require.Contains(t, info.Error, "bytes left out")
			}
			require.NoError(t, c.Call(ctx, "open", path, nil))
			require.NoError(t, <-waiting)
		})
	}
}
