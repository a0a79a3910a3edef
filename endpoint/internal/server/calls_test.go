package server

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Interceptors see every call, and decide whether it runs. A function runs once for each call.
func TestInterceptedCalls(t *testing.T) {
	t.Parallel()
	d := numberEndpoint()
	d.Options.Managed = true
	s := testServer(t, d)
	call := func(intercept Intercept) error {
		s.Intercept = intercept
		var out message.Returned
		return s.perform(t, message.OpCall, message.Call{Endpoint: "number"}, &out, false)
	}
	var late func() (any, error)
	require.NoError(t, call(func(ctx context.Context, about Intercepted, do func(context.Context) error, _ func()) error {
		require.Equal(t, "number", about.Endpoint)
		require.False(t, about.Submit)
		in, err := about.Argument()
		require.NoError(t, err)
		require.Equal(t, 0, in)
		late = about.Argument
		return do(ctx)
	}))
	_, err := late()
	require.ErrorIs(t, err, errCallOver)
	require.EqualValues(t, 1, d.Latency.Count.Load())

	refused := errors.New("not today")
	require.ErrorIs(t, call(func(context.Context, Intercepted, func(context.Context) error, func()) error { return refused }), refused)
	require.EqualValues(t, 1, d.Latency.Count.Load(), "a refused call does not run")
	require.ErrorIs(t, call(func(ctx context.Context, _ Intercepted, do func(context.Context) error, undo func()) error {
		require.NoError(t, do(ctx))
		err := do(ctx)
		undo()
		return err
	}), errRunTwice)
	require.EqualValues(t, 2, d.Latency.Count.Load())
	require.Zero(t, s.Engine.Objects.Count(), "results that do not reach the caller are released")
}

// The run of a task passes the interceptors too.
func TestInterceptedTasks(t *testing.T) {
	t.Parallel()
	s := testServer(t, numberEndpoint())
	var seen []Intercepted
	ran := make(chan struct{})
	s.Intercept = func(ctx context.Context, about Intercepted, do func(context.Context) error, _ func()) error {
		seen = append(seen, about)
		if about.Task != "" {
			defer close(ran)
		}
		return do(ctx)
	}
	id := submit(t, s, "number")
	<-ran
	require.NoError(t, s.perform(t, message.OpTaskWait, message.Task{ID: id}, new(message.TaskInfo), true))
	require.Len(t, seen, 2)
	require.True(t, seen[0].Submit)
	require.Equal(t, id, seen[1].Task)
}

// Cached results are dropped by call, by endpoint, and all at once.
func TestInvalidate(t *testing.T) {
	t.Parallel()
	d := numberEndpoint()
	d.Options.Cached = true
	s := testServer(t, d)
	call := func() (cached bool) {
		var out message.Returned
		require.NoError(t, s.perform(t, message.OpCall, message.Call{Endpoint: "number"}, &out, true))
		return out.Cached
	}
	require.False(t, call())
	require.True(t, call())
	var out message.Invalidated
	require.NoError(t, s.perform(t, message.OpInvalidateCall, message.Call{Endpoint: "number"}, &out, true))
	require.False(t, call())
	require.True(t, call())
	require.NoError(t, s.perform(t, message.OpInvalidateEndpoint, message.InvalidateEndpoint{Endpoint: "number"}, &out, true))
	require.False(t, call())
	require.ErrorIs(t, s.perform(t, message.OpInvalidateEndpoint, message.InvalidateEndpoint{Endpoint: "none"}, &out, true), status.ErrNoEndpoint)
	var listed message.EndpointsListed
	require.NoError(t, s.perform(t, message.OpEndpoints, message.Endpoints{}, &listed, true))
	require.Len(t, listed.Endpoints, 1)
	require.Equal(t, "number", listed.Endpoints[0].Name)
}

// Credit belongs to a running stream.
func TestStreamsOfClient(t *testing.T) {
	t.Parallel()
	var s streams
	s.allow(3, 5) // of a stream that has ended
	c := s.begin(3)
	before := c.items
	s.allow(3, 5)
	require.Equal(t, before+5, c.items)
	s.end(3)
	s.allow(3, 5)
	require.Equal(t, before+5, c.items)
}

// Info returns the manifest on request, and what is loaded.
func TestInfo(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	s.publish(t, "m")
	var out message.InfoResult
	require.NoError(t, s.ask(t, message.OpInfo, message.Info{Name: "m"}, &out))
	require.Nil(t, out.Manifest)
	require.NoError(t, s.ask(t, message.OpInfo, message.Info{Name: "m", Manifest: true}, &out))
	require.Equal(t, 1, out.Manifest.Len())
	require.Zero(t, s.held(t, "m"), "a request for the manifest keeps no lease")
	load, err := s.Models.Announce("m", "next")
	require.NoError(t, err)
	defer load.Done()
	var loading message.InfoResult
	require.NoError(t, s.ask(t, message.OpInfo, message.Info{Name: "m", Manifest: true}, &loading))
	require.Equal(t, "next", loading.Loading.Source)
	require.Equal(t, 1, loading.Manifest.Len())
	require.ErrorIs(t, s.ask(t, message.OpInfo, message.Info{Name: "m", Manifest: true, Version: 9}, &out), status.ErrNotFound)
}
