package endpoint_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// weights returns a state dict with one value.
func weights(t *testing.T, dev driver.Device, value float32) *module.StateDict {
	t.Helper()
	x, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{value})
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("w", x))
	return sd
}

// weight returns the value of a state dict of weights.
func weight(sd *module.StateDict) (float32, error) {
	w, ok := sd.Get("w")
	if !ok {
		return 0, endpoint.ErrNotFound
	}
	defer w.Close()
	return tensor.Item[float32](w)
}

// Functions of an owner use the weights that it owns, from every publisher and also before Serve. They see each new version,
// pin the version in use, and keep it after the server was closed.
func TestFunctionsUseTheWeightsOfTheirOwner(t *testing.T) {
	for name, opts := range map[string]endpoint.ServerOptions{
		"with a socket": {Socket: filepath.Join(t.TempDir(), "s")},
		"local":         {Local: true},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			dev, err := host.Open()
			require.NoError(t, err)
			defer func() { require.NoError(t, dev.Close()) }()
			var model *endpoint.Follower[float32]
			opts.Devices, opts.Registry, opts.Logger = []driver.Device{dev}, endpoint.NewRegistry(), fixture.Discard()
			require.NoError(t, endpoint.Register(opts.Registry, "times", func(_ context.Context, x float32) (y float32, err error) {
				err = model.Use(func(w float32) error { y = x * w; return nil })
				return y, err
			}))
			server, err := endpoint.NewServer(opts)
			require.NoError(t, err)
			defer server.Close()
			model, err = endpoint.Follow(t.Context(), server, "m", func(_ context.Context, v endpoint.ModelVersion) (float32, error) {
				return weight(v.StateDict)
			}, endpoint.FollowOptions{NoWait: true})
			require.NoError(t, err)
			defer model.Close()
			_, err = endpoint.Call[float32](t.Context(), server, "times", float32(2))
			require.ErrorIs(t, err, endpoint.ErrNotFound, "nothing is published")

			w, err := server.Watch(t.Context(), "m")
			require.NoError(t, err)
			defer w.Close()
			var held *endpoint.Handle
			for version := uint64(1); version <= 3; version++ {
				sd := weights(t, dev, float32(version))
				_, err = server.Publish(t.Context(), "m", sd, endpoint.PublishOptions{})
				require.NoError(t, err)
				require.NoError(t, sd.Close())
				e, err := fixture.NextEvent(t.Context(), w)
				require.NoError(t, err)
				require.Equal(t, endpoint.Event{Kind: endpoint.EventPublished, Name: "m", Version: version, Server: server.ID()}, e)
				for changed := model.Changed(); model.Status().Version != version; changed = model.Changed() {
					<-changed
				}
				got, err := endpoint.Call[float32](t.Context(), server, "times", float32(2))
				require.NoError(t, err)
				require.EqualValues(t, 2*version, got)
				if version == 1 {
					held, err = server.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
					require.NoError(t, err)
				}
			}
			require.Equal(t, endpoint.Superseded, held.State())
			proctest.Eventually(t, fixture.WaitLimit, "only the newest version and the one with a lease are left", func() bool {
				list, err := server.List(t.Context())
				return err == nil && len(list[0].Versions) == 2
			})
			require.NoError(t, server.Close())
			got, err := weight(held.StateDict())
			require.NoError(t, err)
			require.EqualValues(t, 1, got, "the memory outlives the server")
			require.NoError(t, held.Close())
			_, err = server.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
			require.ErrorIs(t, err, endpoint.ErrServerClosed)
		})
	}
}

// A client of the process that dials before Serve learns what is missing. One that waits is connected when the server serves.
func TestDialBeforeServe(t *testing.T) {
	drivertest.Leaks(t)
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: filepath.Join(t.TempDir(), "s"), Logger: fixture.Discard()})
	require.NoError(t, err)
	defer server.Close()
	_, err = endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: server.Socket(), Logger: fixture.Discard()})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	require.ErrorContains(t, err, "the server of this process does not serve yet; call Serve")
	c, err := endpoint.NewClient(endpoint.ClientOptions{Socket: server.Socket(), Logger: fixture.Discard()})
	require.NoError(t, err)
	defer c.Close()
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.Background()) }()
	require.NoError(t, c.Connect(t.Context()))
	require.NoError(t, server.Close())
	require.ErrorIs(t, <-served, endpoint.ErrServerClosed)
}
