package node_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// role is one way in which a program runs a function.
type role struct {
	name   string
	node   *nodepkg.Node     // through which it is called
	runs   *nodepkg.Node     // where it runs
	counts *fixture.Counters // of the runs
}

// inRoles calls do with a local node, a server, a client of it in its process, and one over its socket, whose functions
// are registered by share. Each role counts its own runs.
func inRoles(t *testing.T, share func(n *nodepkg.Node, dev driver.Device, counts *fixture.Counters), do func(t *testing.T, r role)) {
	ctx := context.Background()
	open := func(t *testing.T, dev driver.Device, counts *fixture.Counters, opts nodepkg.Options) *nodepkg.Node {
		opts.Devices, opts.Logger = fixture.DriversOf(dev), fixture.Discard()
		n, err := nodepkg.Open(ctx, opts)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		share(n, dev, counts)
		n.Ready()
		return n
	}
	for _, row := range []struct {
		name string
		opts nodepkg.Options
	}{
		{"local", nodepkg.Options{Mode: nodepkg.ModeLocal}},
		{"server", nodepkg.Options{Mode: nodepkg.ModeServer}},
		{"client in the process", nodepkg.Options{Mode: nodepkg.ModeClient}},
		{"over the socket", nodepkg.Options{Mode: nodepkg.ModeClient, Client: endpoint.ClientOptions{OverSocket: true}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			drivertest.Leaks(t)
			dev, counts := fixture.Device(t), new(fixture.Counters)
			row.opts.Socket = proctest.SocketPath(t)
			r := role{name: row.name, counts: counts}
			if row.opts.Mode == nodepkg.ModeClient {
				r.runs = open(t, dev, counts, nodepkg.Options{Mode: nodepkg.ModeServer, Socket: row.opts.Socket})
			}
			r.node = open(t, dev, counts, row.opts)
			if r.runs == nil {
				r.runs = r.node
			}
			do(t, r)
		})
	}
}

// shareModels shares functions that count their runs.
func shareModels(t testing.TB) func(n *nodepkg.Node, dev driver.Device, counts *fixture.Counters) {
	return func(n *nodepkg.Node, dev driver.Device, counts *fixture.Counters) {
		for name, opts := range map[string][]endpoint.Option{
			"cached": {endpoint.Cached()}, "by key": {endpoint.CacheKey("{size}")}, "not cached": nil, "managed": {endpoint.Managed()},
		} {
			_, err := nodepkg.Share(n, name, func(_ context.Context, in fixture.ModelIn) (*tensor.Tensor, error) {
				counts.Add(name)
				return fixture.Filled(dev, in.Size, float32(in.Size))
			}, opts...)
			require.NoError(t, err)
		}
		_, err := nodepkg.Share(n, "nothing", func(context.Context, fixture.ModelIn) (*tensor.Tensor, error) {
			counts.Add("nothing")
			return nil, nil
		}, endpoint.Cached())
		require.NoError(t, err)
	}
}

func TestCacheInAllRoles(t *testing.T) {
	inRoles(t, shareModels(t), func(t *testing.T, r role) {
		ctx := context.Background()
		call := func(through endpoint.Caller, name, label string) {
			t.Helper()
			x, err := endpoint.Call[*tensor.Tensor](ctx, through, name, fixture.ModelIn{Size: 2, Label: label})
			require.NoError(t, err)
			require.Equal(t, []float32{2, 2}, fixture.Values(t, x))
			require.NoError(t, x.Close())
		}
		for name, runs := range map[string]uint64{"cached": 2, "by key": 1, "not cached": 4} {
			for _, through := range []endpoint.Caller{r.runs, r.node} { // both callers get the same result
				call(through, name, "a")
				call(through, name, "b")
			}
			require.Equal(t, runs, r.counts.Get(name), name)
		}
		dropped, err := r.node.InvalidateCall(ctx, "cached", fixture.ModelIn{Size: 2, Label: "a"})
		require.NoError(t, err)
		require.True(t, dropped)
		dropped, err = r.node.InvalidateCall(ctx, "cached", fixture.ModelIn{Size: 2, Label: "a"})
		require.NoError(t, err)
		require.False(t, dropped)
		call(r.node, "cached", "b")
		require.EqualValues(t, 2, r.counts.Get("cached"))
		call(r.node, "cached", "a")
		require.EqualValues(t, 3, r.counts.Get("cached"))
		n, err := r.node.InvalidateEndpoint(ctx, "by key")
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, err = r.node.InvalidateEndpoint(ctx, "cached")
		require.NoError(t, err)
		require.Equal(t, 2, n)
		n, err = r.node.InvalidateEndpoint(ctx, "not cached")
		require.NoError(t, err)
		require.Zero(t, n)
		_, err = r.node.InvalidateEndpoint(ctx, "unknown")
		require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
		call(r.node, "by key", "a")
		require.EqualValues(t, 2, r.counts.Get("by key"))

		for range 2 {
			x, err := fixture.Filled(fixture.Device(t), 1, 0) // the content before the call is replaced
			require.NoError(t, err)
			defer x.Close()
			out := x
			require.NoError(t, r.node.Call(ctx, "nothing", fixture.ModelIn{}, &out))
			require.Nil(t, out)
		}
		require.EqualValues(t, 1, r.counts.Get("nothing"), "nothing is a result like others")
	})
}

func TestRefCountsInAllRoles(t *testing.T) {
	inRoles(t, shareModels(t), func(t *testing.T, r role) {
		ctx := context.Background()
		own, err := endpoint.CallManaged[*tensor.Tensor](ctx, r.runs, "managed", fixture.ModelIn{Size: 3})
		require.NoError(t, err)
		other, err := endpoint.CallManaged[*tensor.Tensor](ctx, r.node, "managed", fixture.ModelIn{Size: 3})
		require.NoError(t, err)
		require.EqualValues(t, 1, r.counts.Get("managed"))
		require.Equal(t, own.ID(), other.ID())
		require.Equal(t, own.ServerID(), other.ServerID())
		info, err := own.Info(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 2, info.Refs)
		released, err := other.Release(ctx)
		require.NoError(t, err)
		require.True(t, released)
		released, err = other.Release(ctx)
		require.NoError(t, err)
		require.False(t, released)
		require.NoError(t, own.Err(), "the other one is as good as before")
		info, err = own.Info(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, info.Refs)
		require.Equal(t, []float32{3, 3, 3}, fixture.Values(t, own.Value()))
		require.Equal(t, []float32{3, 3, 3}, fixture.Values(t, other.Value()), "the memory stays until it is closed")
		require.NoError(t, other.Close())
		require.NoError(t, own.Close())
		again, err := endpoint.CallManaged[*tensor.Tensor](ctx, r.node, "managed", fixture.ModelIn{Size: 3})
		require.NoError(t, err)
		require.EqualValues(t, 2, r.counts.Get("managed"), "the last reference took the cached result along")
		require.NoError(t, again.Close())
	})
}

// A function that returns its own tensor shares it: no other memory, descriptor or mapping is created.
func TestInProcessSharesMemory(t *testing.T) {
	var kept *tensor.Tensor
	share := func(n *nodepkg.Node, dev driver.Device, counts *fixture.Counters) {
		if n.Mode() != nodepkg.ModeClient {
			var err error
			kept, err = fixture.Filled(dev, 4, 1)
			require.NoError(t, err)
		}
		_, err := nodepkg.Share(n, "kept", func(context.Context, struct{}) (*tensor.Tensor, error) { return kept.Alias(), nil })
		require.NoError(t, err)
		_, err = nodepkg.Share(n, "same", func(_ context.Context, in fixture.ScaleIn) (bool, error) {
			return in.X.Storage().Origin() == kept.Storage(), nil
		})
		require.NoError(t, err)
	}
	inRoles(t, share, func(t *testing.T, r role) {
		defer kept.Close()
		ctx := context.Background()
		files, maps := drivertest.OpenFiles(), drivertest.SharedMappings()
		var results []*tensor.Tensor
		for range 3 {
			x, err := endpoint.Call[*tensor.Tensor](ctx, r.node, "kept", nil)
			require.NoError(t, err)
			results = append(results, x)
		}
		lent := r.name != "over the socket"
		// An import on a GPU takes a descriptor and no mapping of the host.
		require.Equal(t, lent, files+maps == drivertest.OpenFiles()+drivertest.SharedMappings(), "descriptors and mappings")
		for _, x := range results {
			require.False(t, x.Storage().Writable())
			if lent {
				require.Same(t, kept.Storage(), x.Storage().Origin())
			} else {
				require.NotSame(t, kept.Storage(), x.Storage().Origin())
			}
			require.NoError(t, x.Close())
		}
		same, err := endpoint.Call[bool](ctx, r.node, "same", fixture.ScaleIn{X: kept})
		require.NoError(t, err)
		require.Equal(t, lent, same)
		proctest.Eventually(t, fixture.WaitLimit, "nobody else has it any more", func() bool { return kept.Storage().Refs() == 1 })
	})
}

// A client opens before its owner.
func TestNodeAutoWaits(t *testing.T) {
	drivertest.Leaks(t)
	base := filepath.Join(filepath.Dir(proctest.SocketPath(t)), "late")
	t.Setenv(envEnabled, "1")
	t.Setenv(envBasePath, base)
	ctx := context.Background()
	_, err := nodepkg.Open(ctx, nodepkg.Options{})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	opened := make(chan *nodepkg.Node, 1)
	go func() {
		n, err := nodepkg.Open(ctx, nodepkg.Options{Client: endpoint.ClientOptions{Wait: true}})
		if err != nil {
			t.Error(err)
		}
		opened <- n
	}()
	o := fixture.Start(t)
	id := o.Serve(base + "-0.sock")
	n := <-opened
	require.NotNil(t, n)
	require.Equal(t, nodepkg.ModeClient, n.Mode())
	info, err := n.Info(ctx)
	require.NoError(t, err)
	require.True(t, info.Auto)
	require.True(t, info.ServerReady)
	require.Equal(t, id, info.Server.ID)
	require.NoError(t, n.Close())
}

func TestNodeCloseTwice(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	socket := proctest.SocketPath(t)
	twice := func(what string, close func() error) {
		t.Helper()
		for range 2 {
			require.NoError(t, close(), what)
		}
	}
	nodes := map[string]*nodepkg.Node{}
	for name, at := range map[string]struct {
		mode   nodepkg.Mode
		socket string
	}{"local": {nodepkg.ModeLocal, ""}, "never ready": {nodepkg.ModeServer, proctest.SocketPath(t)}, "server": {nodepkg.ModeServer, socket}} {
		n, err := nodepkg.Open(ctx, nodepkg.Options{Mode: at.mode, Socket: at.socket})
		require.NoError(t, err)
		nodes[name] = n
	}
	nodes["server"].Ready()
	client, err := nodepkg.Open(ctx, nodepkg.Options{Mode: nodepkg.ModeClient, Socket: socket})
	require.NoError(t, err)
	w, err := client.Client().Watch(ctx)
	require.NoError(t, err)
	twice("watcher", w.Close)
	over, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, OverSocket: true})
	require.NoError(t, err)
	twice("client over the socket", over.Close)
	twice("client", client.Close)
	require.NoError(t, client.Shutdown(ctx))
	for name, n := range nodes {
		twice(name, n.Close)
		require.NoError(t, n.Shutdown(ctx), name)
		n.Ready() // no effect
		if n.Mode() == nodepkg.ModeServer {
			require.ErrorIs(t, n.Serve(ctx), endpoint.ErrServerClosed, name)
		} else {
			require.NoError(t, n.Serve(ctx), name)
		}
		require.Error(t, n.Call(ctx, "x", nil, nil), name)
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
	require.NoError(t, err)
	twice("server that never served", s.Close)
	require.ErrorIs(t, s.Serve(ctx), endpoint.ErrServerClosed)
	require.NoError(t, s.Shutdown(ctx))
}
