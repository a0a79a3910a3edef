package endpoint

import (
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

func TestViewsOfAStorageCrossAsOne(t *testing.T) {
	drivertest.Leaks(t)
	dev := hostDevice(t)
	x := vector(t, dev, 1, 2, 3)
	view, err := tensor.New(x.Storage().ReadOnly(), x.Spec())
	require.NoError(t, err)
	defer view.Close()
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("x", x.Clone()))
	require.NoError(t, sd.Set("view", view.Clone()))
	defer sd.Close()
	p, err := encodePayload(map[string]any{"a": view, "b": x, "sd": sd})
	require.NoError(t, err)
	defer p.close()
	require.Equal(t, []*tensor.Storage{x.Storage()}, p.storages)

	devices, err := newDeviceSet([]driver.Device{dev})
	require.NoError(t, err)
	storages, err := lend(devices, p.storages, driver.ImportOptions{})
	require.NoError(t, err)
	defer closeStorages(storages)
	var out map[string]any
	_, err = decodePayload(p.value, storages, &out, false)
	require.NoError(t, err)
	for _, name := range []string{"a", "b"} {
		got := out[name].(*tensor.Tensor)
		require.Same(t, storages[0], got.Storage())
		values, err := tensor.Float32s(got)
		require.NoError(t, err)
		require.Equal(t, []float32{1, 2, 3}, values)
	}
	require.Equal(t, 2, out["sd"].(*module.StateDict).Len())
	closeValue(out)
}

func TestLendingGivesBackWhatItCannotLend(t *testing.T) {
	dev := hostDevice(t)
	x, y := vector(t, dev, 1), vector(t, dev, 2)
	devices, err := newDeviceSet([]driver.Device{dev})
	require.NoError(t, err)
	require.NoError(t, y.Storage().Memory().(driver.Freezer).Freeze())
	_, err = lend(devices, []*tensor.Storage{x.Storage(), y.Storage()}, driver.ImportOptions{Writable: true})
	require.ErrorIs(t, err, driver.ErrReadOnly)
	require.ErrorContains(t, err, "storage 1")
	_, err = lend(deviceSet{}, []*tensor.Storage{x.Storage()}, driver.ImportOptions{})
	require.ErrorIs(t, err, ErrCapability)
	require.EqualValues(t, 1, x.Storage().Refs())
	require.EqualValues(t, 1, y.Storage().Refs())
}

func TestPipes(t *testing.T) {
	dev := hostDevice(t)
	x := vector(t, dev, 1)
	a, b := newPipes(wire.Limits{Frame: 100}, wire.Limits{Frame: 50, Files: 1})
	require.EqualValues(t, os.Getpid(), a.Peer().PID)
	require.True(t, a.Peer().SameUser())
	require.False(t, b.Buffered())
	body := []byte{1, 2}
	require.NoError(t, a.lend(wire.Frame{Kind: wire.KindRequest, ID: 7, Body: body}, []*tensor.Storage{x.Storage()}))
	body[0] = 9 // it was borrowed
	require.True(t, b.Buffered())
	f, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, wire.Frame{Kind: wire.KindRequest, ID: 7, Body: []byte{1, 2}, Files: f.Files}, f)
	require.Equal(t, []*tensor.Storage{x.Storage()}, lentWith(f.Files))
	require.EqualValues(t, 2, x.Storage().Refs())
	require.NoError(t, f.Files.Close())
	require.EqualValues(t, 1, x.Storage().Refs())
	require.Empty(t, lentWith(f.Files))

	for _, end := range []*pipe{a, b} {
		require.ErrorIs(t, end.Send(wire.KindRequest, 1, make([]byte, 51)), wire.ErrTooLarge)
		require.ErrorIs(t, end.lend(wire.Frame{Kind: wire.KindRequest, ID: 1}, make([]*tensor.Storage, 2)), wire.ErrTooLarge)
	}
	for i := range uint64(2 * keptFrames) {
		require.NoError(t, a.lend(wire.Frame{Kind: wire.KindEvent, ID: i}, []*tensor.Storage{x.Storage()}))
	}
	require.NoError(t, a.Send(wire.KindGoodbye, 0, nil))
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.Send(wire.KindRequest, 2, nil), os.ErrClosed)
	_, err = a.Receive()
	require.ErrorIs(t, err, os.ErrClosed)
	for i := range uint64(keptFrames) { // what was sent before the end comes, in order
		f, err := b.Receive()
		require.NoError(t, err)
		require.Equal(t, i, f.ID)
		require.NoError(t, f.Files.Close())
	}
	require.ErrorIs(t, b.Send(wire.KindResponse, 2, nil), syscall.EPIPE)
	require.NoError(t, b.Close())
	require.EqualValues(t, 1, x.Storage().Refs(), "what nobody took is given back")
	_, err = b.Receive()
	require.ErrorIs(t, err, os.ErrClosed)

	a, b = newPipes(wire.Limits{}, wire.Limits{})
	ended := make(chan error, 1)
	go func() {
		_, err := b.Receive()
		ended <- err
	}()
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-ended, io.EOF)
	require.True(t, b.Buffered())
	require.NoError(t, b.Close())
}
