package endpoint_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// What must not be nil is refused where it enters, with an error that names it. It does not panic, and no later call fails.
func TestNilIsRefusedWhereItEnters(t *testing.T) {
	r := endpoint.NewRegistry()
	type holder struct{ X *tensor.Tensor }
	unexpected := func() (int, error) { t.Error("the function ran"); return 0, nil }
	require.NoError(t, endpoint.Register(r, "first", func(_ context.Context, in []*tensor.Tensor) (int, error) {
		if len(in) > 0 {
			return unexpected()
		}
		return 0, nil
	}))
	require.NoError(t, endpoint.Register(r, "named", func(context.Context, map[string]*tensor.Tensor) (int, error) { return unexpected() }))
	require.NoError(t, endpoint.Register(r, "held", func(context.Context, holder) (int, error) { return unexpected() }))
	require.NoError(t, endpoint.Register(r, "one", func(context.Context, *tensor.Tensor) (int, error) { return unexpected() }))
	prepare := func(context.Context, endpoint.ModelVersion) (int, error) { return unexpected() }
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Offers: endpoint.AllowOffers})
	var (
		noClient *endpoint.Client
		noServer *endpoint.Server
		noTensor *tensor.Tensor
		noDict   *module.StateDict
		noDevice driver.Device
	)
	x, err := tensor.Zeros(fixture.Device(t), tensor.Float32, tensor.Shape{1})
	require.NoError(t, err)
	defer x.Close()
	dict := module.NewStateDict()
	defer dict.Close()
	for name, c := range map[string]struct {
		names string
		do    func() error
	}{
		"Call without a caller":   {"caller", func() error { _, err := endpoint.Call[int](ctx, nil, "add", nil); return err }},
		"Call with a nil client":  {"client", func() error { _, err := endpoint.Call[int](ctx, noClient, "add", nil); return err }},
		"Call with a nil server":  {"server", func() error { _, err := endpoint.Call[int](ctx, noServer, "add", nil); return err }},
		"publish no dict":         {"state dict", func() error { _, err := c.Publish(ctx, "m", noDict, endpoint.PublishOptions{}); return err }},
		"publish no dict, server": {"state dict", func() error { _, err := s.Publish(ctx, "m", noDict, endpoint.PublishOptions{}); return err }},
		"offer no registry":       {"registry", func() error { _, err := c.Offer(ctx, nil, endpoint.OfferOptions{}); return err }},
		"register nowhere": {"registry", func() error {
			return endpoint.Register(nil, "x", func(context.Context, int) (int, error) { return 0, nil })
		}},
		"register no function": {"function", func() error { return endpoint.Register[int, int](endpoint.NewRegistry(), "x", nil) }},
		"a nil option": {"option", func() error {
			return endpoint.Register(endpoint.NewRegistry(), "x", func(context.Context, int) (int, error) { return 0, nil }, nil)
		}},
		"server with a device": {"device", func() error {
			_, err := endpoint.NewServer(endpoint.ServerOptions{Socket: t.TempDir() + "/s", Devices: []driver.Device{noDevice}})
			return err
		}},
		"client with a device": {"device", func() error {
			_, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), Devices: []driver.Device{noDevice}})
			return err
		}},
		"server with an interceptor": {"interceptor", func() error {
			_, err := endpoint.NewServer(endpoint.ServerOptions{Socket: t.TempDir() + "/s", Interceptors: []endpoint.Interceptor{nil}})
			return err
		}},
		"client with an interceptor": {"interceptor", func() error {
			_, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), Interceptors: []endpoint.Interceptor{nil}})
			return err
		}},
		"result without a pointer": {"pointer", func() error { return c.Call(ctx, "first", []*tensor.Tensor{}, 5) }},
		"tensor in a list":         {"[1]", func() error { _, err := endpoint.Call[int](ctx, c, "first", []*tensor.Tensor{x, noTensor}); return err }},
		"tensor in a map": {`["a"]`, func() error {
			_, err := endpoint.Call[int](ctx, c, "named", map[string]*tensor.Tensor{"a": nil})
			return err
		}},
		"tensor in a field": {"X", func() error { _, err := endpoint.Call[int](ctx, c, "held", holder{}); return err }},
		"tensor":            {"tensor", func() error { _, err := endpoint.Call[int](ctx, c, "one", noTensor); return err }},
		"follow without a client": {"client", func() error {
			_, err := endpoint.Follow(ctx, noClient, "m", prepare, endpoint.FollowOptions{})
			return err
		}},
		"follow without prepare": {"prepare", func() error { _, err := endpoint.Follow[int](ctx, c, "m", nil, endpoint.FollowOptions{}); return err }},
		"stream without a caller": {"caller", func() (err error) {
			for _, err = range endpoint.Stream[int](ctx, nil, "x", nil) {
			}
			return err
		}},
		"managed without a caller": {"caller", func() error { _, err := endpoint.CallManaged[int](ctx, nil, "x", nil); return err }},
		"result without a task":    {"task", func() error { _, err := endpoint.ResultManaged[int](ctx, nil); return err }},
		"set no tensor":            {"tensor", func() error { return dict.Set("x", noTensor) }},
		"load without a device": {"device", func() error {
			_, err := module.Load(ctx, noDevice, "nothing.safetensors", module.LoadOptions{})
			return err
		}},
		"zeros without a device": {"device", func() error { _, err := tensor.Zeros(noDevice, tensor.Float32, tensor.Shape{1}); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if assert.NotPanics(t, func() { err = c.do() }) {
				require.Error(t, err)
				assert.Contains(t, err.Error(), c.names)
			}
		})
	}
}
