package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// repeats are the kinds of results that an owner sends more than once. Each returns a function that requests the result
// again, and a function that ends it.
var repeats = map[string]func(t *testing.T, c *endpoint.Client, in pageIn) (again func() (*tensor.Tensor, error), end func()){
	"cached": func(t *testing.T, c *endpoint.Client, in pageIn) (func() (*tensor.Tensor, error), func()) {
		again := func() (*tensor.Tensor, error) {
			return endpoint.Call[*tensor.Tensor](context.Background(), c, "cached", in)
		}
		return again, func() {
			ok, err := c.InvalidateCall(context.Background(), "cached", in)
			require.NoError(t, err)
			require.True(t, ok)
		}
	},
	"managed": func(t *testing.T, c *endpoint.Client, in pageIn) (func() (*tensor.Tensor, error), func()) {
		var refs []*endpoint.Ref[*tensor.Tensor]
		again := func() (*tensor.Tensor, error) {
			ref, err := endpoint.CallManaged[*tensor.Tensor](context.Background(), c, "managed", in)
			if err != nil {
				return nil, err
			}
			refs = append(refs, ref)
			return ref.Value().Alias(), nil
		}
		return again, func() {
			for _, ref := range refs {
				require.NoError(t, ref.Close())
			}
			_, err := c.InvalidateEndpoint(context.Background(), "managed")
			require.NoError(t, err)
		}
	},
	"task": func(t *testing.T, c *endpoint.Client, in pageIn) (func() (*tensor.Tensor, error), func()) {
		job, err := c.Submit(context.Background(), "task", in)
		require.NoError(t, err)
		_, err = job.Wait(context.Background())
		require.NoError(t, err)
		again := func() (x *tensor.Tensor, err error) {
			err = job.Result(context.Background(), &x)
			return x, err
		}
		return again, nil // its owner keeps it
	},
}

// requireRepeat skips a test of memory that is mapped once if that is disabled.
func requireRepeat(t *testing.T) {
	t.Helper()
	fixture.RequireFeature(t, message.FeaturePool)
	fixture.RequireFeature(t, message.FeatureRepeat)
}

// repeatFixture returns an owner with results that are sent again, and a client of it over a socket.
func repeatFixture(t *testing.T, limits endpoint.Limits) (*endpoint.Server, *endpoint.Client) {
	t.Helper()
	dev := fixture.Device(t)
	r := endpoint.NewRegistry()
	full := func(_ context.Context, in pageIn) (*tensor.Tensor, error) {
		return tensor.Full(dev, tensor.Uint8, tensor.Shape{in.Bytes}, float64(in.Value))
	}
	require.NoError(t, errors.Join(
		endpoint.Register(r, "cached", full, endpoint.Cached()), endpoint.Register(r, "managed", full, endpoint.Managed()),
		endpoint.Register(r, "task", full, endpoint.AsTask()),
	))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: fixture.Discard(), Limits: limits})
	return s, fixture.SocketClient(t, s)
}

func requireValue(t *testing.T, x *tensor.Tensor, in pageIn) {
	t.Helper()
	data, err := x.ReadBytes()
	require.NoError(t, err)
	require.Len(t, data, int(in.Bytes))
	for _, at := range []int{0, len(data) / 2, len(data) - 1} {
		require.Equal(t, in.Value, data[at])
	}
}

// A result that is sent again is mapped once, however many tensors of it are open, and until it has ended.
func TestRepeatedResults(t *testing.T) {
	requireRepeat(t)
	for name, kind := range repeats {
		for _, bytes := range []int64{1, 70_000, 1 << 20} {
			t.Run(fmt.Sprint(name, " ", bytes), func(t *testing.T) {
				drivertest.Leaks(t)
				s, c := repeatFixture(t, endpoint.Limits{})
				in := pageIn{bytes, 3}
				again, end := kind(t, c, in)
				var open []*tensor.Tensor
				more := func() *tensor.Tensor {
					x, err := again()
					require.NoError(t, err)
					requireValue(t, x, in)
					require.False(t, x.Storage().Memory().Writable())
					open = append(open, x)
					return x
				}
				proctest.Eventually(t, fixture.WaitLimit, "the same mapping", func() bool {
					more()
					x, y := more(), more()
					return x.Storage().Memory() == y.Storage().Memory()
				})
				require.EqualValues(t, 1, slabsOf(t, s))
				at := open[len(open)-1].Storage().Memory()
				for range 30 {
					require.True(t, more().Storage().Memory() == at, "no further mapping")
				}
				for _, x := range open[2:] {
					require.NoError(t, x.Close())
				}
				requireValue(t, open[0], in)
				if end != nil {
					end()
					proctest.Eventually(t, fixture.WaitLimit/2, "the number ends with the result", func() bool { return slabsOf(t, s) == 0 })
				}
				requireValue(t, open[0], in)
				requireValue(t, open[1], in)
				require.NoError(t, errors.Join(open[0].Close(), open[1].Close()))
				if name == "cached" {
					x, err := again()
					require.NoError(t, err)
					requireValue(t, x, in)
					require.NoError(t, x.Close())
				}
			})
		}
	}
}

// More results than a session may have mappings, called in turn by several goroutines, are all correct.
func TestRepeatedResultsBeyondLimit(t *testing.T) {
	requireRepeat(t)
	drivertest.Leaks(t)
	s, c := repeatFixture(t, endpoint.Limits{KeptBytes: 100_000})
	failed := make(chan error, 4)
	for worker := range 4 {
		go func() {
			failed <- func() error {
				for i := range 400 {
					in := pageIn{5000, uint8((i*(1+worker) + i/100) % 30)}
					x, err := endpoint.Call[*tensor.Tensor](context.Background(), c, "cached", in)
					if err != nil {
						return err
					}
					data, err := x.ReadBytes()
					if err == nil && (data[0] != in.Value || data[4999] != in.Value) {
						err = fmt.Errorf("%d instead of %d", data[0], in.Value)
					}
					if i%50 == 0 {
						_, invalid := c.InvalidateCall(context.Background(), "cached", in)
						err = errors.Join(err, invalid)
					}
					if err = errors.Join(err, x.Close()); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 4 {
		require.NoError(t, <-failed)
	}
	require.LessOrEqual(t, fixture.LimitUse(t, s, "kept_bytes").Used, int64(100_000))
	require.NoError(t, c.Close())
	proctest.Eventually(t, fixture.WaitLimit, "the mappings end with the client", func() bool { return slabsOf(t, s) == 0 })
}

// A client without the feature gets a descriptor with each answer.
func TestRepeatsUnsupportedByClient(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is sent alike")
	drivertest.Leaks(t)
	s, _ := repeatFixture(t, endpoint.Limits{})
	args, err := message.Marshal(map[string]any{"Bytes": 1 << 16, "Value": 3})
	require.NoError(t, err)
	for _, features := range [][]string{nil, {message.FeaturePool}, {message.FeatureRepeat}} {
		p := fixture.RawPeer(t, s.Socket())
		_, err := message.ClientHandshake(p.Conn, message.Hello{Features: features})
		require.NoError(t, err)
		for range 4 {
			frame, err := p.Send(message.OpCall, message.Call{Endpoint: "cached", Args: args})
			require.NoError(t, err)
			got, err := message.ParseReturned(frame.Body)
			require.NoError(t, err)
			require.Len(t, got.Handles, 1)
			require.Zero(t, got.Handles[0].Storage)
			require.EqualValues(t, 0, got.Handles[0].File)
			frame.Files.Close()
		}
	}
	require.Zero(t, slabsOf(t, s))
}

// A slice of a result that was not closed stays valid when the owner has ended the number of the memory.
func TestSliceOfRepeatedResult(t *testing.T) {
	requirePool(t)
	requireRepeat(t)
	s, c := repeatFixture(t, endpoint.Limits{})
	in := pageIn{1 << 16, 9}
	again, end := repeats["cached"](t, c, in)
	for range 3 {
		x, err := again()
		require.NoError(t, err)
		require.NoError(t, x.Close())
	}
	leaks := driver.Leaks()
	slice := func() []byte {
		x, err := again()
		require.NoError(t, err)
		data, err := tensor.RawData(x)
		require.NoError(t, err)
		return data
	}()
	end()
	proctest.Eventually(t, fixture.WaitLimit, "the number has ended", func() bool { return slabsOf(t, s) == 0 })
	proctest.Eventually(t, fixture.WaitLimit, "the leak is counted", func() bool {
		runtime.GC()
		return driver.Leaks() != leaks
	})
	require.Equal(t, in.Value, slice[0])
	require.Equal(t, in.Value, slice[len(slice)-1])
}

// Clients are killed while they have numbered memory mapped. The owner keeps nothing for them.
func TestRepeatedResultsOfKilledClients(t *testing.T) {
	requirePool(t)
	requireRepeat(t)
	drivertest.Leaks(t)
	s, c := repeatFixture(t, endpoint.Limits{})
	in := pageIn{1 << 16, 7}
	again, end := repeats["cached"](t, c, in)
	held, err := again()
	require.NoError(t, err)
	for range 3 {
		child := fixture.Client(t, s.Socket())
		for range 4 {
			repeatOp.Must(child.Process, in)
		}
		require.EqualValues(t, 1, slabsOf(t, s))
		child.Kill()
		proctest.Eventually(t, fixture.WaitLimit, "its number has ended", func() bool { return slabsOf(t, s) == 0 })
	}
	requireValue(t, held, in)
	end()
	requireValue(t, held, in)
	require.NoError(t, held.Close())
}
