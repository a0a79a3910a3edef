package endpoint_test

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func TestNodeShareStub(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	n, err := endpoint.Stub[struct{ N int }, int](c, "double")(ctx, struct{ N int }{21})
	require.NoError(t, err)
	require.Equal(t, 42, n)
	_, err = endpoint.Stub[struct{ M int }, int](c, "double")(ctx, struct{ M int }{21})
	require.ErrorIs(t, err, message.ErrEncoding)
	_, err = endpoint.Stub[struct{ N int }, string](c, "double")(ctx, struct{ N int }{21})
	require.ErrorContains(t, err, "result")
	_, err = endpoint.Stub[struct{}, int](c, "no such")(ctx, struct{}{})
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	_, err = endpoint.Stub[struct{}, int](c, "panic")(ctx, struct{}{})
	require.ErrorIs(t, err, endpoint.ErrPanic)
}

// A shared stream returns the same items locally and from the server.
func TestNodeShareStream(t *testing.T) {
	drivertest.Leaks(t)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	socket := proctest.SocketPath(t)
	open := func(mode nodepkg.Mode) (*nodepkg.Node, func(context.Context, int) iter.Seq2[int, error]) {
		n, err := nodepkg.Open(ctx, nodepkg.Options{Mode: mode, Socket: socket, Devices: fixture.DriversOf(fixture.Device(t)), Logger: fixture.Discard(), Client: endpoint.ClientOptions{OverSocket: true}})
		require.NoError(t, err)
		t.Cleanup(func() { n.Close() })
		count, err := nodepkg.ShareStream(n, "count", func(_ context.Context, n int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := 0; i < n && yield(i, nil); i++ {
				}
			}
		})
		require.NoError(t, err)
		_, err = nodepkg.ShareStream(n, "count", func(context.Context, int) iter.Seq2[int, error] { return nil })
		require.ErrorIs(t, err, endpoint.ErrRegistered)
		return n, count
	}
	server, onServer := open(nodepkg.ModeServer)
	server.Ready()
	_, onClient := open(nodepkg.ModeClient)
	local, here := open(nodepkg.ModeLocal)
	require.NotNil(t, local)
	for _, count := range []func(context.Context, int) iter.Seq2[int, error]{onServer, onClient, here} {
		var got []int
		for i, err := range count(ctx, 100) {
			require.NoError(t, err)
			got = append(got, i)
		}
		require.Equal(t, slices.Collect(func(yield func(int) bool) {
			for i := 0; i < 100 && yield(i); i++ {
			}
		}), got)
	}
}

// A watch whose answer arrives after the caller has left is ended at the owner.
func TestWatchBeginsTooLate(t *testing.T) {
	t.Parallel()
	o := fixture.NewFakeOwner(t)
	c, end := o.Connected("a")
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := c.Watch(ctx, "m")
		failed <- err
	}()
	id := end.NextRequest(message.OpWatch, nil)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	frame := end.NextFrame()
	require.Equal(t, wire.KindCancel, frame.Kind)
	end.SendFrame(wire.KindResponse, id, message.Watching{})
	var ended message.Unwatch
	end.NextRequest(message.OpUnwatch, &ended)
	require.Equal(t, id, ended.Watch)
}

// A new reference updates an object's last access time.
func TestObjectAccessTime(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	hold := func() *endpoint.Ref[*tensor.Tensor] {
		ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4})
		require.NoError(t, err)
		t.Cleanup(func() { ref.Close() })
		return ref
	}
	first, err := hold().Info(ctx)
	require.NoError(t, err)
	time.Sleep(2 * time.Millisecond)
	again, err := hold().Info(ctx)
	require.NoError(t, err)
	require.Equal(t, first.ID, again.ID)
	require.Equal(t, first.CreatedAt, again.CreatedAt)
	require.True(t, again.LastAccessedAt.After(first.LastAccessedAt))
}
