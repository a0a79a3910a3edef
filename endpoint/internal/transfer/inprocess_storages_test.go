package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func hostDevice(t testing.TB) driver.Device {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	return dev
}

func vector(t testing.TB, dev driver.Device, values ...float32) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(dev, tensor.Shape{int64(len(values))}, values)
	require.NoError(t, err)
	t.Cleanup(func() { x.Close() })
	return x
}

func TestViewsOfAStorageCrossAsOne(t *testing.T) {
	drivertest.Leaks(t)
	dev := hostDevice(t)
	x := vector(t, dev, 1, 2, 3)
	view, err := tensor.New(x.Storage().ReadOnly(), x.Spec())
	require.NoError(t, err)
	defer view.Close()
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("x", x.Alias()))
	require.NoError(t, sd.Set("view", view.Alias()))
	defer sd.Close()
	p, err := codec.EncodePayload(map[string]any{"a": view, "b": x, "sd": sd})
	require.NoError(t, err)
	defer p.Close()
	require.Equal(t, []*tensor.Storage{x.Storage()}, p.Storages)

	devices, err := NewDevices([]driver.Device{dev})
	require.NoError(t, err)
	storages, err := ShareInProcess(devices, p.Storages, driver.ImportOptions{})
	require.NoError(t, err)
	defer CloseStorages(storages)
	var out map[string]any
	_, err = codec.DecodePayload(p.Value, storages, &out, false)
	require.NoError(t, err)
	for _, name := range []string{"a", "b"} {
		got := out[name].(*tensor.Tensor)
		require.Same(t, storages[0], got.Storage())
		values, err := tensor.Float32s(got)
		require.NoError(t, err)
		require.Equal(t, []float32{1, 2, 3}, values)
	}
	require.Equal(t, 2, out["sd"].(*module.StateDict).Len())
	codec.CloseValue(out)
}

func TestInProcessStoragesRefused(t *testing.T) {
	t.Parallel()
	dev := hostDevice(t)
	x, y := vector(t, dev, 1), vector(t, dev, 2)
	devices, err := NewDevices([]driver.Device{dev})
	require.NoError(t, err)
	require.NoError(t, y.Storage().Memory().Freeze())
	_, err = ShareInProcess(devices, []*tensor.Storage{x.Storage(), y.Storage()}, driver.ImportOptions{Writable: true})
	require.ErrorIs(t, err, driver.ErrReadOnly)
	require.ErrorContains(t, err, "storage 1")
	_, err = ShareInProcess(Devices{}, []*tensor.Storage{x.Storage()}, driver.ImportOptions{})
	require.ErrorIs(t, err, status.ErrCapability)
	require.EqualValues(t, 1, x.Storage().Refs())
	require.EqualValues(t, 1, y.Storage().Refs())
}
