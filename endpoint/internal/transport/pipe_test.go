package transport

import (
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
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

func TestPipes(t *testing.T) {
	t.Parallel()
	dev := hostDevice(t)
	x := vector(t, dev, 1)
	a, b := NewPipe(wire.Limits{Frame: 100}, wire.Limits{Frame: 50, Files: 1})
	require.EqualValues(t, os.Getpid(), a.Peer().PID)
	require.True(t, a.Peer().SameUser())
	require.False(t, b.Buffered())
	body := []byte{1, 2}
	require.NoError(t, a.SendStorages(wire.Frame{Kind: wire.KindRequest, ID: 7, Body: body}, []*tensor.Storage{x.Storage()}))
	body[0] = 9 // Send has copied it
	require.True(t, b.Buffered())
	f, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, wire.Frame{Kind: wire.KindRequest, ID: 7, Body: []byte{1, 2}, Files: f.Files}, f)
	require.Equal(t, []*tensor.Storage{x.Storage()}, transfer.InProcessStorages(f.Files))
	require.EqualValues(t, 2, x.Storage().Refs())
	require.NoError(t, f.Files.Close())
	require.EqualValues(t, 1, x.Storage().Refs())
	require.Empty(t, transfer.InProcessStorages(f.Files))

	for _, end := range []*Pipe{a, b} {
		require.ErrorIs(t, end.Send(wire.KindRequest, 1, make([]byte, 51)), wire.ErrTooLarge)
		require.ErrorIs(t, end.SendStorages(wire.Frame{Kind: wire.KindRequest, ID: 1}, make([]*tensor.Storage, 2)), wire.ErrTooLarge)
	}
	for i := range uint64(2 * minRing) {
		require.NoError(t, a.SendStorages(wire.Frame{Kind: wire.KindEvent, ID: i}, []*tensor.Storage{x.Storage()}))
	}
	require.NoError(t, a.Send(wire.KindGoodbye, 0, nil))
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.Send(wire.KindRequest, 2, nil), os.ErrClosed)
	_, err = a.Receive()
	require.ErrorIs(t, err, os.ErrClosed)
	for i := range uint64(minRing) { // frames sent before the end arrive in order
		f, err := b.Receive()
		require.NoError(t, err)
		require.Equal(t, i, f.ID)
		require.NoError(t, f.Files.Close())
	}
	require.ErrorIs(t, b.Send(wire.KindResponse, 2, nil), syscall.EPIPE)
	require.NoError(t, b.Close())
	require.EqualValues(t, 1, x.Storage().Refs(), "frames that were not received are released")
	_, err = b.Receive()
	require.ErrorIs(t, err, os.ErrClosed)

	a, b = NewPipe(wire.Limits{}, wire.Limits{})
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

// The ring of a busy queue grows with the number of waiting frames, not of passed frames. It shrinks after a burst.
func TestQueueUnderConstantLoad(t *testing.T) {
	t.Parallel()
	q := newQueue()
	var sent, taken uint64
	send := func(n int) {
		t.Helper()
		for range n {
			require.NoError(t, q.put(wire.Frame{ID: sent}))
			sent++
		}
	}
	take := func(n int) {
		t.Helper()
		for range n {
			f, err := q.take()
			require.NoError(t, err)
			require.Equal(t, taken, f.ID)
			taken++
		}
	}
	send(3)
	for range 10 * minRing {
		send(5)
		take(5)
		require.Equal(t, minRing, len(q.ring))
	}
	const burst = 20 * minRing
	send(burst)
	require.LessOrEqual(t, len(q.ring), 2*burst)
	take(burst)
	for range 10 * minRing {
		send(1)
		take(1)
	}
	require.Equal(t, minRing, len(q.ring))
	take(3)
	require.Equal(t, sent, taken)
	for _, f := range q.ring {
		require.Zero(t, f, "received frames are not reachable")
	}
	send(minRing + 1)
	q.finish()
	take(minRing + 1)
	_, err := q.take()
	require.ErrorIs(t, err, io.EOF)
}
