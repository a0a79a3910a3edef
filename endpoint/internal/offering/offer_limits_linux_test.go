package offering_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// offerServer returns a server in this process that accepts offers, and a caller over the socket.
func offerServer(t *testing.T, opts endpoint.ServerOptions) (*endpoint.Server, *endpoint.Client) {
	t.Helper()
	if opts.Offers == nil {
		opts.Offers = endpoint.AllowOffers
	}
	s := fixture.Serve(t, opts)
	return s, overSocket(t, s)
}

// overSocket returns a client of a server in this process, over the socket.
func overSocket(t *testing.T, s *endpoint.Server) *endpoint.Client {
	t.Helper()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: fixture.DriversOf(fixture.Device(t))})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// offering offers the test functions to a server.
func offering(t *testing.T, s *endpoint.Server, counts *fixture.Counters, opts endpoint.OfferOptions) *endpoint.Offer {
	t.Helper()
	o, err := overSocket(t, s).Offer(context.Background(), workRegistry(fixture.Device(t), counts), opts)
	require.NoError(t, err)
	return o
}

// refusedBy returns the number of refusals because of a limit.
func refusedBy(t *testing.T, c endpoint.Caller, name string) uint64 {
	t.Helper()
	return limitOf(t, c, name).Refused
}

// inUse returns how much of a limit is in use.
func inUse(t *testing.T, c endpoint.Caller, name string) int64 {
	t.Helper()
	return limitOf(t, c, name).Used
}

// limitOf returns the state of a limit.
func limitOf(t *testing.T, c endpoint.Caller, name string) (limit endpoint.LimitUse) {
	t.Helper()
	info, err := c.ServerInfo(context.Background())
	require.NoError(t, err)
	for _, l := range info.Limits {
		if l.Name == name {
			return l
		}
	}
	require.Fail(t, "no limit "+name)
	return limit
}

// oneEndpoint returns a registry with one endpoint.
func oneEndpoint(t *testing.T, name string, opts ...endpoint.Option) *endpoint.Registry {
	t.Helper()
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, name, func(context.Context, struct{}) (string, error) { return name, nil }, opts...))
	return r
}

func TestOfferLimits(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	t.Run("endpoints", func(t *testing.T) {
		s, c := offerServer(t, endpoint.ServerOptions{Limits: endpoint.Limits{Offers: 2, OffersTotal: 3}})
		one, two := overSocket(t, s), overSocket(t, s)
		for i := range 2 {
			_, err := one.Offer(ctx, oneEndpoint(t, fmt.Sprint("a", i)), endpoint.OfferOptions{})
			require.NoError(t, err)
		}
		_, err := one.Offer(ctx, oneEndpoint(t, "a2"), endpoint.OfferOptions{})
		require.ErrorIs(t, err, endpoint.ErrLimit)
		_, err = two.Offer(ctx, oneEndpoint(t, "b0"), endpoint.OfferOptions{})
		require.NoError(t, err)
		_, err = two.Offer(ctx, oneEndpoint(t, "b1"), endpoint.OfferOptions{})
		require.ErrorIs(t, err, endpoint.ErrLimit)
		require.EqualValues(t, 2, refusedBy(t, c, "offers"))
		require.NoError(t, one.Close())
		proctest.Eventually(t, fixture.WaitLimit, "there is room again", func() bool {
			_, err := two.Offer(ctx, oneEndpoint(t, "b1"), endpoint.OfferOptions{})
			return err == nil
		})
	})
	t.Run("bytes", func(t *testing.T) {
		s, c := offerServer(t, endpoint.ServerOptions{Limits: endpoint.Limits{OfferBytes: 200}})
		one := overSocket(t, s)
		_, err := one.Offer(ctx, oneEndpoint(t, "a"), endpoint.OfferOptions{})
		require.NoError(t, err)
		_, err = one.Offer(ctx, workRegistry(fixture.Device(t), new(fixture.Counters)), endpoint.OfferOptions{})
		require.ErrorIs(t, err, endpoint.ErrLimit)
		require.EqualValues(t, 1, refusedBy(t, c, "offer_bytes"))
	})
}

// Calls over a worker's limit wait, and end with their contexts.
func TestOfferCallLimit(t *testing.T) {
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{Limits: endpoint.Limits{WorkerCalls: 3}})
	var counts fixture.Counters
	offering(t, s, &counts, endpoint.OfferOptions{Calls: 2})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := endpoint.Call[int](ctx, c, "wait", nil)
			ended <- err
		}()
	}
	proctest.Eventually(t, fixture.WaitLimit, "one call waits", func() bool {
		return counts.Get("waits") == 2 && inUse(t, c, "requests") >= 3
	})
	short, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	_, err := endpoint.Call[int](short, c, "add", map[string]int{"a": 1})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cancel()
	for range 3 {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
	sum, err := endpoint.Call[int](context.Background(), c, "add", map[string]int{"a": 1})
	require.NoError(t, err)
	require.Equal(t, 1, sum)
	require.Zero(t, refusedBy(t, c, "worker_calls"), "waiting is no refusal")
}

func TestOfferTimeLimit(t *testing.T) {
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{Limits: endpoint.Limits{WorkerTime: 30 * time.Millisecond}})
	var counts fixture.Counters
	offering(t, s, &counts, endpoint.OfferOptions{})
	_, err := endpoint.Call[int](context.Background(), c, "slow", 2000) // which ignores its context
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, message.CodeDeadlineExceeded)
	require.EqualValues(t, 1, refusedBy(t, c, "worker_seconds"))
	for counts.Get("waits") == 0 { // the time may end before the call reaches the worker
		_, err := endpoint.Call[int](context.Background(), c, "wait", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	proctest.Eventually(t, fixture.WaitLimit, "the function hears of it", func() bool {
		return counts.Get("cause: the caller has left: the worker has not answered within 30ms")+
			counts.Get("cause: context deadline exceeded") > 0
	})
}

// Only clients that the owner permits may offer.
func TestOfferPermission(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	closed := fixture.Serve(t, endpoint.ServerOptions{})
	_, err := overSocket(t, closed).Offer(ctx, oneEndpoint(t, "a"), endpoint.OfferOptions{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "--offers")
	fixture.PolitePeer(t, closed.Socket()).Refused(message.CodeUnsupported, message.OpOffer, message.Offer{Endpoints: []message.EndpointInfo{{Name: "a"}}})

	s, _ := offerServer(t, endpoint.ServerOptions{Offers: func(p endpoint.Peer, names []string) error {
		if p.PID == 0 || len(names) != 1 || names[0] != "allowed" {
			return fmt.Errorf("not %v", names)
		}
		return nil
	}})
	w := overSocket(t, s)
	_, err = w.Offer(ctx, oneEndpoint(t, "other"), endpoint.OfferOptions{})
	require.ErrorIs(t, err, endpoint.ErrPermission)
	require.ErrorContains(t, err, "not [other]")
	_, err = w.Offer(ctx, oneEndpoint(t, "allowed"), endpoint.OfferOptions{})
	require.NoError(t, err)

	inside, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	defer inside.Close()
	_, err = inside.Offer(ctx, oneEndpoint(t, "allowed"), endpoint.OfferOptions{})
	require.ErrorIs(t, err, errors.ErrUnsupported, "a client of the owner's own process")
}

// Names in use, endpoints that a worker cannot offer, and empty registries are refused.
func TestOfferRefused(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	s, c := offerServer(t, endpoint.ServerOptions{Registry: oneEndpoint(t, "own")})
	w := overSocket(t, s)
	for _, row := range []struct {
		what string
		r    *endpoint.Registry
		err  error
	}{
		{"the owner's name", oneEndpoint(t, "own"), endpoint.ErrRegistered},
		{"nothing", endpoint.NewRegistry(), endpoint.ErrConfiguration},
		{"nil", nil, endpoint.ErrConfiguration},
		{"writable arguments", oneEndpoint(t, "w", endpoint.WritableArguments()), endpoint.ErrConfiguration},
		{"a key", oneEndpoint(t, "k", endpoint.CacheKey("all")), endpoint.ErrConfiguration},
	} {
		_, err := w.Offer(ctx, row.r, endpoint.OfferOptions{})
		require.ErrorIs(t, err, row.err, row.what)
	}
	_, err := w.Offer(ctx, oneEndpoint(t, "shared", endpoint.Cached()), endpoint.OfferOptions{})
	require.NoError(t, err)
	other := overSocket(t, s)
	_, err = other.Offer(ctx, oneEndpoint(t, "shared"), endpoint.OfferOptions{})
	require.ErrorIs(t, err, endpoint.ErrRegistered, "described otherwise")
	require.ErrorContains(t, err, "another worker")
	_, err = other.Offer(ctx, oneEndpoint(t, "shared", endpoint.Cached()), endpoint.OfferOptions{})
	require.NoError(t, err, "described alike")
	list, err := c.Endpoints(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Len(t, list[1].Workers, 2)
	require.NoError(t, other.Close())
	require.NoError(t, w.Close())
	proctest.Eventually(t, fixture.WaitLimit, "the endpoint is withdrawn", func() bool {
		_, err := endpoint.Call[string](ctx, c, "shared", nil)
		return errors.Is(err, endpoint.ErrNoEndpoint)
	})

	p := fixture.PolitePeer(t, s.Socket())
	for _, bad := range []message.EndpointInfo{
		{}, {Name: "a\nb"}, {Name: "a", Stream: true, Task: true}, {Name: "a", Timeout: -1}, {Name: "a", In: "x\x1b[2J"},
		{Name: "a", InFields: []message.FieldInfo{{}}}, {Name: "a", InFields: []message.FieldInfo{{Name: "x"}, {Name: "x"}}},
		{Name: "a", InFields: make([]message.FieldInfo, 300)},
		{Name: "a", OutFields: []message.FieldInfo{{Name: "1", Fields: []message.FieldInfo{{Name: "2", Fields: []message.FieldInfo{{Name: "3", Fields: []message.FieldInfo{
			{Name: "4", Fields: []message.FieldInfo{{Name: "5"}}}}}}}}}}},
	} {
		p.Refused(message.CodeConfiguration, message.OpOffer, message.Offer{Endpoints: []message.EndpointInfo{bad}})
	}
	p.Refused(message.CodeConfiguration, message.OpOffer, message.Offer{})
	p.Refused(message.CodeProvider, message.OpOffer, message.Offer{Endpoints: []message.EndpointInfo{{Name: "a"}, {Name: "a"}}})
	list, err = c.Endpoints(ctx)
	require.NoError(t, err)
	require.Len(t, list, 1, "none of it is there")
}
