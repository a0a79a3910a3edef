package client_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
)

// second returns the error of a function with two results.
func second[T any](_ T, err error) error { return err }

// lastError runs a loop to its end and returns the error of the last pair.
func lastError[T any](loop func(func(T, error) bool)) (last error) {
	for _, err := range loop {
		last = err
	}
	return last
}

// requests returns the methods of a client that send requests to its owner.
func requests(dev driver.Device, sd *module.StateDict, r *endpoint.Registry) map[string]func(context.Context, *endpoint.Client) error {
	specs := []module.NamedSpec{}
	return map[string]func(context.Context, *endpoint.Client) error{
		"Acquire": func(ctx context.Context, c *endpoint.Client) error {
			return second(c.Acquire(ctx, "m", endpoint.AcquireOptions{Version: 1}))
		},
		"Call":               func(ctx context.Context, c *endpoint.Client) error { return c.Call(ctx, "f", 1, nil) },
		"Cancel":             func(ctx context.Context, c *endpoint.Client) error { return second(c.Task("t").Cancel(ctx)) },
		"Destroy":            func(ctx context.Context, c *endpoint.Client) error { return second(c.Destroy(ctx, "o")) },
		"Digests":            func(ctx context.Context, c *endpoint.Client) error { return second(c.Digests(ctx, "m", 0)) },
		"Endpoints":          func(ctx context.Context, c *endpoint.Client) error { return second(c.Endpoints(ctx)) },
		"EnsureLive":         func(ctx context.Context, c *endpoint.Client) error { return second(c.EnsureLive(ctx, "o", "")) },
		"Info":               func(ctx context.Context, c *endpoint.Client) error { return second(c.Info(ctx, "m")) },
		"InvalidateCall":     func(ctx context.Context, c *endpoint.Client) error { return second(c.InvalidateCall(ctx, "f", 1)) },
		"InvalidateEndpoint": func(ctx context.Context, c *endpoint.Client) error { return second(c.InvalidateEndpoint(ctx, "f")) },
		"List":               func(ctx context.Context, c *endpoint.Client) error { return second(c.List(ctx)) },
		"Manifest":           func(ctx context.Context, c *endpoint.Client) error { return second(c.Manifest(ctx, "m", 0)) },
		"NewVersion":         func(ctx context.Context, c *endpoint.Client) error { return second(c.NewVersion(ctx, "m", specs)) },
		"ObjectInfo":         func(ctx context.Context, c *endpoint.Client) error { return second(c.ObjectInfo(ctx, "o")) },
		"Objects":            func(ctx context.Context, c *endpoint.Client) error { return second(c.Objects(ctx)) },
		"Offer": func(ctx context.Context, c *endpoint.Client) error {
			return second(c.Offer(ctx, r, endpoint.OfferOptions{}))
		},
		"Ping": func(ctx context.Context, c *endpoint.Client) error { return second(c.Ping(ctx)) },
		"Rollback": func(ctx context.Context, c *endpoint.Client) error {
			return second(c.Rollback(ctx, "m", 1))
		},
		"Publish": func(ctx context.Context, c *endpoint.Client) error {
			return second(c.Publish(ctx, "m", sd, endpoint.PublishOptions{Digests: true}))
		},
		"Result":     func(ctx context.Context, c *endpoint.Client) error { return c.Task("t").Result(ctx, nil) },
		"ServerInfo": func(ctx context.Context, c *endpoint.Client) error { return second(c.ServerInfo(ctx)) },
		"Stream":     func(ctx context.Context, c *endpoint.Client) error { return lastError(c.Stream(ctx, "f", 1)) },
		"Submit":     func(ctx context.Context, c *endpoint.Client) error { return second(c.Submit(ctx, "f", 1)) },
		"Task":       func(ctx context.Context, c *endpoint.Client) error { return second(c.Task("t").Info(ctx)) },
		"Tasks": func(ctx context.Context, c *endpoint.Client) error {
			return second(c.Tasks(ctx, endpoint.TaskFilter{}))
		},
		"Wait":        func(ctx context.Context, c *endpoint.Client) error { return second(c.Task("t").Wait(ctx)) },
		"Watch":       func(ctx context.Context, c *endpoint.Client) error { return second(c.Watch(ctx, "m")) },
		"Task.Events": func(ctx context.Context, c *endpoint.Client) error { return lastError(c.Task("t").Events(ctx)) },
		"WatchTasks": func(ctx context.Context, c *endpoint.Client) error {
			return lastError(c.WatchTasks(ctx, endpoint.TaskFilter{}))
		},
		"Withdraw":   func(ctx context.Context, c *endpoint.Client) error { return c.Withdraw(ctx, "m") },
		"WithdrawIf": func(ctx context.Context, c *endpoint.Client) error { return c.WithdrawIf(ctx, "m", 1) },
		// Functions of the package that send requests in another way.
		"CallManaged": func(ctx context.Context, c *endpoint.Client) error {
			return second(endpoint.CallManaged[int](ctx, c, "f", 1))
		},
		"ResultManaged": func(ctx context.Context, c *endpoint.Client) error {
			return second(endpoint.ResultManaged[int](ctx, c.Task("t")))
		},
	}
}

// noRequests are the methods that send no request, or whose purpose is to wait for an owner.
var noRequests = []string{"Changed", "Close", "Connect", "Follow", "ServerID", "Socket", "State", "Stats"}

// ends returns the error of a request, which must end.
func ends(t testing.TB, name string, request func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- request() }()
	select {
	case err := <-done:
		return err
	case <-fixture.Timeout():
		require.FailNow(t, "the request waits", name)
		return nil
	}
}

// lose closes the owner of a client that needs no connection, and returns when the client has noticed.
func lose(t testing.TB, c *endpoint.Client, s *endpoint.Server) {
	t.Helper()
	require.NoError(t, s.Close())
	proctest.Eventually(t, fixture.WaitLimit, "the loss of the owner", func() bool { return c.State() == endpoint.StateIdle })
}

// Every request of a client whose owner is gone fails with the reason, if its context has no deadline.
func TestRequestWithoutOwner(t *testing.T) {
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	sd, err := fixture.Synthetic(dev, fixture.Model{})
	require.NoError(t, err)
	defer sd.Close()
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "f", func(_ context.Context, n int) (int, error) { return n, nil }))
	all := requests(dev, sd, r)
	for i := range reflect.TypeFor[*endpoint.Client]().NumMethod() {
		name := reflect.TypeFor[*endpoint.Client]().Method(i).Name
		require.True(t, all[name] != nil || slices.Contains(noRequests, name), "%s is not tested", name)
	}
	s := fixture.Serve(t, endpoint.ServerOptions{})
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: fixture.DriversOf(dev), Logger: fixture.Discard()})
	require.NoError(t, err)
	defer c.Close()
	lose(t, c, s)
	for name, request := range all {
		ctx, cancel := context.WithCancel(t.Context()) // without a deadline
		err := ends(t, name, func() error { return request(ctx, c) })
		cancel()
		require.ErrorIs(t, err, endpoint.ErrUnavailable, name)
		require.ErrorContains(t, err, "no such socket", name)
	}
	require.Zero(t, c.Stats().Watchers)
}

// A request waits for the next owner if its context has a deadline, if the client has Wait, or if waiting is its
// purpose.
func TestRequestWaitsForOwner(t *testing.T) {
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	call := func(ctx context.Context, c *endpoint.Client) error {
		got, err := endpoint.Call[int](ctx, c, "f", 7)
		if err == nil && got != 7 {
			err = errors.New("a wrong result")
		}
		return err
	}
	for name, row := range map[string]struct {
		wait, deadline bool
		request        func(context.Context, *endpoint.Client) error
	}{
		"deadline": {deadline: true, request: call},
		"Wait":     {wait: true, request: call},
		"Connect":  {request: func(ctx context.Context, c *endpoint.Client) error { return c.Connect(ctx) }},
		"Acquire": {request: func(ctx context.Context, c *endpoint.Client) error {
			h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{Wait: true})
			if err != nil {
				return err
			}
			return h.Close()
		}},
		"Follow": {request: func(ctx context.Context, c *endpoint.Client) error {
			f, err := c.Follow(ctx, "m", endpoint.FollowOptions{})
			if err != nil {
				return err
			}
			return f.Close()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			socket := proctest.SocketPath(t)
			s := fixture.Serve(t, endpoint.ServerOptions{Socket: socket})
			c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{
				Socket: socket, OverSocket: true, Devices: fixture.DriversOf(dev), Wait: row.wait, Logger: fixture.Discard(),
			})
			require.NoError(t, err)
			defer c.Close()
			lose(t, c, s)
			ctx, cancel := context.WithCancel(t.Context())
			if row.deadline {
				ctx, cancel = context.WithTimeout(t.Context(), 2*fixture.WaitLimit)
			}
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- row.request(ctx, c) }()
			proctest.Eventually(t, fixture.WaitLimit, "attempts that fail", func() bool { return c.Stats().DialFailures > 1 })
			require.Empty(t, done)

			r := endpoint.NewRegistry()
			require.NoError(t, endpoint.Register(r, "f", func(_ context.Context, n int) (int, error) { return n, nil }))
			next := fixture.Serve(t, endpoint.ServerOptions{Socket: socket, Registry: r, Devices: fixture.DriversOf(dev)})
			sd, err := fixture.Synthetic(dev, fixture.Model{})
			require.NoError(t, err)
			fixture.PublishOn(t, next, "m", sd)
			require.NoError(t, ends(t, name, func() error { return <-done }))
		})
	}
}

// A submission that an interceptor turns into an error is undone without waiting for an owner.
func TestSubmitUndoWithoutOwner(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "f", func(ctx context.Context, n int) (int, error) { return n, nil }, endpoint.AsTask()))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	refused := errors.New("refused")
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{
		Socket: s.Socket(), OverSocket: true, Logger: fixture.Discard(), Wait: true,
		Interceptors: []endpoint.Interceptor{func(next endpoint.Invoke) endpoint.Invoke {
			return func(ctx context.Context, call *endpoint.Invocation) error {
				if err := errors.Join(next(ctx, call), s.Close()); err != nil {
					return err
				}
				return refused
			}
		}},
	})
	require.NoError(t, err)
	defer c.Close()
	err = ends(t, "Submit", func() error { return second(c.Submit(t.Context(), "f", 1)) })
	require.ErrorIs(t, err, refused)
}
