package offering_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// offerOwner starts a process that accepts offers.
func offerOwner(t *testing.T) (*fixture.Child, string) {
	t.Helper()
	socket := proctest.SocketPath(t)
	o := fixture.Start(t)
	takeOffers(o, socket)
	return o, socket
}

// offerWorker starts a process that offers endpoints.
func offerWorker(t *testing.T, socket string) *fixture.Child {
	t.Helper()
	w := fixture.Start(t)
	work(w, socket)
	return w
}

// offerCaller returns a client in this process.
func offerCaller(t *testing.T, socket string) *endpoint.Client {
	t.Helper()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(fixture.Device(t))})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// Functions offered by one process are called by another through the owner.
func TestOfferCalls(t *testing.T) {
	t.Parallel()
	_, socket := offerOwner(t)
	offerWorker(t, socket)
	c := offerCaller(t, socket)
	ctx := context.Background()

	sum, err := endpoint.Call[int](ctx, c, "add", map[string]int{"a": 1, "b": 41})
	require.NoError(t, err)
	require.Equal(t, 42, sum)

	_, err = endpoint.Call[int](ctx, c, "quota", nil)
	require.ErrorIs(t, err, errUsedUp)
	require.EqualError(t, err, `call "quota": owner: endpoint "quota": the quota is used up`)
	_, err = endpoint.Call[int](ctx, c, "panic", nil)
	require.ErrorIs(t, err, endpoint.ErrPanic)
	_, err = endpoint.Call[int](ctx, c, "goexit", nil)
	require.ErrorIs(t, err, endpoint.ErrGoexit)
	_, err = endpoint.Call[int](ctx, c, "add", "text")
	require.ErrorIs(t, err, message.CodeSerialization)

	_, err = endpoint.Call[int](ctx, c, "ad", nil)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
}

// Arguments and results are in the memory of the processes that created them.
func TestOfferTensorsShareMemory(t *testing.T) {
	t.Parallel()
	fixture.HostOnly(t, "memory of other devices has no inode")
	_, socket := offerOwner(t)
	w := offerWorker(t, socket)
	c := offerCaller(t, socket)
	ctx := context.Background()
	x, err := fixture.Filled(fixture.Device(t), 1000, 3)
	require.NoError(t, err)
	defer x.Close()

	mine, err := placeOf(x)
	require.NoError(t, err)
	theirs, err := endpoint.Call[string](ctx, c, "place", factorIn{X: x})
	require.NoError(t, err)
	require.Equal(t, mine, theirs, "the worker looks at the caller's memory")

	out, err := endpoint.Call[placed](ctx, c, "make", 1000)
	require.NoError(t, err)
	here, err := placeOf(out.X)
	require.NoError(t, err)
	require.Equal(t, out.Place, here, "the caller looks at the worker's memory")

	scaled, err := endpoint.Call[*tensor.Tensor](ctx, c, "scale", factorIn{X: x, Factor: 2})
	require.NoError(t, err)
	defer scaled.Close()
	back, err := endpoint.Call[*tensor.Tensor](ctx, c, "same", factorIn{X: x})
	require.NoError(t, err)
	defer back.Close()
	again, err := placeOf(back)
	require.NoError(t, err)
	require.Equal(t, mine, again, "a result in the memory of an argument is that memory")

	w.Kill() // its results stay
	require.Equal(t, float32(7), fixture.Values(t, out.X)[999])
	require.Equal(t, float32(6), fixture.Values(t, scaled)[999])
	require.Equal(t, float32(3), fixture.Values(t, back)[999])
	out.X.Close()
}

// Calls of a killed worker end with ErrWorkerGone, its endpoints are withdrawn, and can be offered again.
func TestOfferWorkerKilled(t *testing.T) {
	t.Parallel()
	_, socket := offerOwner(t)
	w := offerWorker(t, socket)
	c := offerCaller(t, socket)
	ctx := context.Background()
	failed := make(chan error, 1)
	go func() {
		_, err := endpoint.Call[int](ctx, c, "stubborn", nil)
		failed <- err
	}()
	proctest.Eventually(t, fixture.WaitLimit, "the function runs", func() bool { return w.Ran("stubborn") == 1 })
	w.Kill()
	err := <-failed
	require.ErrorIs(t, err, endpoint.ErrWorkerGone)
	require.ErrorIs(t, err, message.CodeUnavailable)
	require.NotErrorIs(t, err, endpoint.ErrUnavailable, "nothing asks again by itself")
	require.ErrorContains(t, err, "the function may have run")
	proctest.Eventually(t, fixture.WaitLimit, "its endpoints are withdrawn", func() bool {
		_, err := endpoint.Call[int](ctx, c, "add", map[string]int{"a": 1})
		return errors.Is(err, endpoint.ErrNoEndpoint)
	})
	offerWorker(t, socket)
	sum, err := endpoint.Call[int](ctx, c, "add", map[string]int{"a": 1})
	require.NoError(t, err)
	require.Equal(t, 1, sum)
}

// After its owner was killed, a worker offers its endpoints to the next one.
func TestOfferReconnects(t *testing.T) {
	t.Parallel()
	o, socket := offerOwner(t)
	offerWorker(t, socket)
	o.Kill()
	next := fixture.Start(t)
	takeOffers(next, socket)
	c := offerCaller(t, socket)
	proctest.Eventually(t, fixture.WaitLimit, "the worker is back", func() bool {
		sum, err := endpoint.Call[int](context.Background(), c, "add", map[string]int{"a": 5})
		return err == nil && sum == 5
	})
}

// A caller cancels, times out, or is killed.
func TestOfferCancel(t *testing.T) {
	t.Parallel()
	_, socket := offerOwner(t)
	w := offerWorker(t, socket)
	c := offerCaller(t, socket)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := endpoint.Call[int](ctx, c, "wait", nil)
		ended <- err
	}()
	proctest.Eventually(t, fixture.WaitLimit, "the function runs", func() bool { return w.Ran("waits") == 1 })
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	proctest.Eventually(t, fixture.WaitLimit, "the function hears of it", func() bool { return w.Ran("cause: context canceled") == 1 })

	for w.Ran("waits") < 2 { // on a busy machine the time may end before the function has begun
		short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		_, err := endpoint.Call[int](short, c, "wait", nil)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}

	dies, before := fixture.Client(t, socket), w.Ran("waits")
	fixture.HoldObjectOp.Send(dies.Process, fixture.ObjectCall{Endpoint: "wait"}) // killed before it can answer
	proctest.Eventually(t, fixture.WaitLimit, "the function runs again", func() bool { return w.Ran("waits") > before })
	dies.Kill()
	proctest.Eventually(t, fixture.WaitLimit, "the worker has no calls", func() bool {
		list, err := c.Endpoints(context.Background())
		require.NoError(t, err)
		for _, e := range list {
			if e.Name == "wait" {
				return len(e.Workers) == 1 && e.Workers[0].Running == 0 && e.Workers[0].Label == "the worker" && e.Workers[0].PID == w.PID()
			}
		}
		return false
	})
}
