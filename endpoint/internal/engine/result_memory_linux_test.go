package engine_test

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// An owner limits the results that it keeps for a client: managed objects with references, and items of streams that
// the client does not take.
func TestLimitsResultBytes(t *testing.T) {
	t.Parallel()
	const size = 512 << 10
	dev := fixture.Device(t)
	r := endpoint.NewRegistry()
	build := func(_ context.Context, n int) (*tensor.Tensor, error) { return fixture.Filled(dev, size/4, float32(n)) }
	require.NoError(t, endpoint.Register(r, "object", build, endpoint.Managed()))
	require.NoError(t, endpoint.RegisterStream(r, "items", func(ctx context.Context, n int) iter.Seq2[*tensor.Tensor, error] {
		return func(yield func(*tensor.Tensor, error) bool) {
			for yield(build(ctx, n)) {
			}
		}
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{
		Devices: []driver.Device{dev}, Registry: r, Logger: fixture.Discard(),
		Limits: endpoint.Limits{ObjectBytes: 5 * size / 2, ObjectBytesTotal: 7 * size / 2}, // two, and three
	})
	client := func() *endpoint.Client {
		c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.Socket(), Devices: []driver.Device{dev}, OverSocket: true})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	managed := func(c *endpoint.Client, n int) (*endpoint.Ref[*tensor.Tensor], error) {
		ref, err := endpoint.CallManaged[*tensor.Tensor](t.Context(), c, "object", n)
		if err == nil {
			t.Cleanup(func() { ref.Close() })
		}
		return ref, err
	}
	one, two := client(), client()
	first, err := managed(one, 1)
	require.NoError(t, err)
	_, err = managed(one, 2)
	require.NoError(t, err)
	_, err = managed(one, 1)
	require.NoError(t, err, "what it has already costs nothing more")
	_, err = managed(two, 1)
	require.NoError(t, err)
	_, err = managed(two, 2)
	require.NoError(t, err)
	use := fixture.LimitUse(t, s, "object_bytes")
	require.GreaterOrEqual(t, use.Used, int64(2*size))
	require.Less(t, use.Used, int64(3*size), "what two clients have counts once for all together")
	require.Equal(t, use.Used, use.Most)
	_, err = managed(one, 3)
	require.ErrorIs(t, err, endpoint.ErrLimit)
	require.ErrorContains(t, err, "this client has results of")
	require.EqualValues(t, 1, fixture.LimitUse(t, s, "object_bytes").Refused)

	third := client()
	_, err = managed(third, 3)
	require.NoError(t, err)
	_, err = managed(client(), 4)
	require.ErrorIs(t, err, endpoint.ErrLimit, "the owner has three")
	require.ErrorContains(t, err, "all clients have results of")
	require.NoError(t, third.Close())
	require.NoError(t, first.Close())
	proctest.Eventually(t, fixture.WaitLimit, "one object is left to one, two to two", func() bool {
		_, err = managed(client(), 4)
		return err == nil
	})
	require.NoError(t, one.Close())
	require.NoError(t, two.Close())
	proctest.Eventually(t, fixture.WaitLimit, "all of it is given back but the last", func() bool { return fixture.LimitUse(t, s, "object_bytes").Used < 2*size })

	// Items of streams wait for the client.
	p := fixture.PolitePeer(t, s.Socket())
	argument, err := message.Marshal(1)
	require.NoError(t, err)
	for range 3 {
		p.Begin(message.OpStream, message.Call{Endpoint: "items", Args: argument}, 0)
	}
	for {
		frame, err := p.Conn.Receive()
		require.NoError(t, err)
		frame.Files.Close()
		if frame.Kind == wire.KindEvent {
			continue
		}
		require.Equal(t, wire.KindError, frame.Kind)
		var e message.Error
		require.NoError(t, message.Unmarshal(frame.Body, &e))
		require.Equal(t, message.CodeResourceExhausted, e.Code, e.Message)
		require.Contains(t, e.Message, "results of")
		return
	}
}
