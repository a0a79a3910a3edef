package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/task"
)

// A Serialized function that waits for itself gets an error that names the functions on the way. On the way are
// functions, tasks and cached results.
func TestSerializedWaitsForItself(t *testing.T) {
	through := map[string][]endpoint.Option{
		"":               {endpoint.NoCache()},
		"a function":     {endpoint.NoCache()},
		"a serialized":   {endpoint.NoCache(), endpoint.Serialized()},
		"a cached":       {endpoint.Cached()},
		"a cached alone": {endpoint.Cached(), endpoint.NoSingleFlight(), endpoint.Serialized()},
		"a task":         {endpoint.NoCache(), endpoint.AsTask()},
	}
	for kind, opts := range map[string][]endpoint.Option{
		"function":     {endpoint.NoCache(), endpoint.Serialized()},
		"by key":       {endpoint.NoCache(), endpoint.SerializedBy("{size}")},
		"task":         {endpoint.NoCache(), endpoint.AsTask(), endpoint.Serialized()},
		"cached alone": {endpoint.Cached(), endpoint.NoSingleFlight(), endpoint.Serialized()},
	} {
		for by, its := range through {
			t.Run(kind+" through "+by, func(t *testing.T) {
				r := endpoint.NewRegistry()
				ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Workers: 1}})
				ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
				defer cancel()
				next := "middle"
				if by == "" {
					next = "outer"
				}
				register(t, r, "outer", func(ctx context.Context, in fixture.ModelIn) (int, error) {
					return endpoint.Call[int](ctx, s, next, in)
				}, opts...)
				register(t, r, "middle", func(ctx context.Context, in fixture.ModelIn) (int, error) {
					return endpoint.Call[int](ctx, s, "outer", in)
				}, its...)
				for _, from := range []endpoint.Caller{c, s} {
					_, err := endpoint.Call[int](ctx, from, "outer", fixture.ModelIn{Size: 3})
					require.ErrorIs(t, err, task.ErrSelf)
					require.ErrorContains(t, err, `"outer"`)
					require.NotErrorIs(t, err, context.DeadlineExceeded)
				}
			})
		}
	}
}

// Two calls that hold a key each and wait for the other's: one gets the error, the other one ends.
func TestSerializedWaitForEachOther(t *testing.T) {
	r := endpoint.NewRegistry()
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	both := make(chan struct{}, 2)
	meet := make(chan struct{})
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		register(t, r, names[0], func(ctx context.Context, depth int) (int, error) {
			if depth == 0 {
				return 1, nil
			}
			both <- struct{}{}
			<-meet
			return endpoint.Call[int](ctx, s, names[1], 0)
		}, endpoint.NoCache(), endpoint.Serialized())
	}
	ended := make(chan error, 2)
	for _, name := range []string{"a", "b"} {
		go func() {
			_, err := endpoint.Call[int](ctx, c, name, 1)
			ended <- err
		}()
	}
	<-both
	<-both
	close(meet)
	errs := []error{<-ended, <-ended}
	if errs[0] == nil {
		errs[0], errs[1] = errs[1], errs[0]
	}
	require.ErrorIs(t, errs[0], task.ErrSelf)
	require.Regexp(t, `"(a" waits for "b" waits for "a|b" waits for "a" waits for "b)"`, errs[0].Error())
	require.NoError(t, errs[1])
}

// Calls of different keys, and calls one after the other, do not wait for themselves.
func TestSerializedDoesNotWaitForItself(t *testing.T) {
	r := endpoint.NewRegistry()
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	register(t, r, "down", func(ctx context.Context, in fixture.ModelIn) (int, error) {
		if in.Size == 0 {
			return 0, nil
		}
		n, err := endpoint.Call[int](ctx, s, "down", fixture.ModelIn{Size: in.Size - 1})
		return n + 1, err
	}, endpoint.NoCache(), endpoint.SerializedBy("{size}"))
	ended := make(chan error)
	for range 8 {
		go func() {
			n, err := endpoint.Call[int](ctx, c, "down", fixture.ModelIn{Size: 20})
			if err == nil && n != 20 {
				err = fmt.Errorf("%d, not 20", n)
			}
			ended <- err
		}()
	}
	for range 8 {
		require.NoError(t, <-ended)
	}
}
