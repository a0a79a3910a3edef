package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

var errQuota = endpoint.NewError("quota", "the quota is used up")

// Errors of the program and of the standard library keep their class, in calls and tasks, over the socket and within
// the process.
func TestErrorApplicationCode(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	refuse := func(_ context.Context, n int) (int, error) {
		return 0, fmt.Errorf("user %d: %w", n, errQuota.WithData(map[string]int{"left": n}))
	}
	require.NoError(t, endpoint.Register(r, "call", refuse))
	require.NoError(t, endpoint.Register(r, "task", refuse, endpoint.AsTask()))
	require.NoError(t, endpoint.Register(r, "file", func(context.Context, int) (int, error) {
		_, err := os.Open("/nowhere/at/all")
		return 0, err
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	ctx := context.Background()
	for _, over := range []bool{true, false} {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: over})
		require.NoError(t, err)
		defer c.Close()
		for _, through := range []endpoint.Caller{c, s} {
			for _, name := range []string{"call", "task"} {
				_, err := endpoint.Call[int](ctx, through, name, 7)
				require.ErrorIs(t, err, errQuota)
				require.NotErrorIs(t, err, endpoint.NewError("another", ""))
				require.ErrorContains(t, err, "user 7: the quota is used up")
				var own *endpoint.Error
				require.ErrorAs(t, err, &own)
				require.Equal(t, "quota", own.Code())
				require.EqualError(t, own, "the quota is used up")
				var data map[string]int
				require.NoError(t, own.Data(&data))
				require.Equal(t, map[string]int{"left": 7}, data)
			}
			_, err := endpoint.Call[int](ctx, through, "file", 1)
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorIs(t, err, message.CodeNotFound)
		}
	}
}

func TestErrorApplicationData(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, errQuota.WithData(make(chan int)), "cannot be sent")
	require.ErrorContains(t, errQuota.WithData(make([]byte, 1<<20)), "cannot be sent")
	require.EqualError(t, endpoint.NewError("code", ""), "code")
	kept := 3
	require.NoError(t, errQuota.Data(&kept))
	require.Equal(t, 3, kept)
	require.Error(t, errQuota.WithData("text").Data(&kept))
}

// An endpoint returns an error defined by the program, and the caller recognises it.
func ExampleNewError() {
	registry := endpoint.NewRegistry()
	endpoint.Register(registry, "infer", func(_ context.Context, tokens int) (string, error) {
		return "", fmt.Errorf("infer: %w", endpoint.NewError("quota", "the quota is used up").WithData(tokens))
	})
	node, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Registry: registry})
	if err != nil {
		panic(err)
	}
	defer node.Close()
	_, err = endpoint.Call[string](context.Background(), node, "infer", 512)
	var own *endpoint.Error
	if errors.As(err, &own) && own.Code() == "quota" {
		var tokens int
		own.Data(&tokens)
		fmt.Println(own, tokens)
	}
	// Output: the quota is used up 512
}
