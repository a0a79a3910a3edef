package endpointtest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
)

var errNegative = endpoint.NewError("negative", "the number is negative")

func functions(t *testing.T) *endpoint.Registry {
	t.Helper()
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "double", func(_ context.Context, n int) (int, error) {
		if n < 0 {
			return 0, errNegative
		}
		return 2 * n, nil
	}))
	require.NoError(t, endpoint.RegisterStream(r, "count", func(_ context.Context, n int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := 0; i < n && yield(i, nil); i++ {
			}
		}
	}))
	return r
}

// fake returns a Fake with the functions above.
func fake() *endpointtest.Fake {
	return &endpointtest.Fake{
		Funcs: map[string]func(context.Context, any) (any, error){
			"double": func(_ context.Context, in any) (any, error) {
				if in.(int) < 0 {
					return nil, errNegative
				}
				return 2 * in.(int), nil
			},
		},
		Streams: map[string]func(context.Context, any) iter.Seq2[any, error]{
			"count": func(_ context.Context, in any) iter.Seq2[any, error] {
				return func(yield func(any, error) bool) {
					for i := 0; i < in.(int) && yield(i, nil); i++ {
					}
				}
			},
		},
	}
}

// A call returns the same from an owner and from a Fake.
func TestCalls(t *testing.T) {
	drivertest.Leaks(t)
	o, err := endpointtest.Open(endpoint.ServerOptions{Registry: functions(t)})
	drivertest.Needs(t, "memfd", !errors.Is(err, errors.ErrUnsupported), fmt.Sprint(err))
	require.NoError(t, err)
	defer func() { require.NoError(t, o.Close()) }()
	f := fake()
	for name, c := range map[string]endpoint.Calls{"client": o.Client, "server": o.Server, "fake": f} {
		t.Run(name, func(t *testing.T) {
			got, err := endpoint.Call[int](t.Context(), c, "double", 21)
			require.NoError(t, err)
			require.Equal(t, 42, got)
			require.NoError(t, c.Call(t.Context(), "double", 1, nil))
			_, err = endpoint.Call[int](t.Context(), c, "double", -1)
			require.ErrorIs(t, err, errNegative)
			_, err = endpoint.Call[int](t.Context(), c, "triple", 1)
			require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
			_, err = endpoint.Call[string](t.Context(), c, "double", 1)
			require.Error(t, err, "a number is no text")
			var items []int
			for i, err := range endpoint.Stream[int](t.Context(), c, "count", 3) {
				require.NoError(t, err)
				items = append(items, i)
			}
			require.Equal(t, []int{0, 1, 2}, items)
			for _, err := range endpoint.Stream[int](t.Context(), c, "nothing", 3) {
				require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = endpoint.Call[int](over, c, "double", 1)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
	require.Equal(t, endpointtest.Invocation{Endpoint: "double", In: 21}, f.Invocations()[0])
	require.Len(t, f.Invocations(), 8)
}

func TestOpenFails(t *testing.T) {
	drivertest.Leaks(t)
	_, err := endpointtest.Open(endpoint.ServerOptions{Socket: "/"})
	require.Error(t, err)
}

// Two owners at the same time are independent.
func TestStart(t *testing.T) {
	one, two := endpointtest.Start(t, endpoint.ServerOptions{}), endpointtest.Start(t, endpoint.ServerOptions{})
	require.NotEqual(t, one.Client.ServerID(), two.Client.ServerID())
	require.Equal(t, one.Server.ID(), one.Client.ServerID())
	require.NoError(t, one.Close())
	require.NoError(t, one.Close(), "a second time is nothing")
	_, err := two.Client.Ping(t.Context())
	require.NoError(t, err)
}
