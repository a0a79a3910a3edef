package cuda_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

func TestMemOps(t *testing.T) {
	d := openDevice(t, 0)
	m, waiter, writer := alloc(t, d, 64), newStream(t, d), newStream(t, d)
	require.NoError(t, waiter.MemOps(
		cuda.Wait32(m, 0, cuda.AtLeast, 5), cuda.Wait32(m, 4, cuda.Equal, 6), cuda.Wait64(m, 8, cuda.AnyBit, 4),
		cuda.Wait32(m, 16, cuda.NotAllBits, ^uint32(1)), cuda.MemBarrier(), cuda.Write64(m, 24, 1<<40)))
	require.NoError(t, m.Fill(16, 4, 0xff))
	require.NoError(t, writer.MemOps(cuda.Write32(m, 0, 7), cuda.Write32(m, 4, 6), cuda.Write64(m, 8, 12)))
	require.NoError(t, writer.Synchronize())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, waiter.WaitContext(ctx), context.DeadlineExceeded, "a bit is set in neither")
	require.NoError(t, writer.WriteValue32(m, 16, ^uint32(1)))
	require.NoError(t, writer.Synchronize())
	require.NoError(t, waiter.Synchronize())
	require.Equal(t, []uint32{7, 6, 12, 0, ^uint32(1), 0, 0, 1 << 8}, words(t, m, 8))

	require.NoError(t, waiter.WaitValue32(m, 32, 1<<31-1)) // 1<<31 - 1 is the largest distance
	require.NoError(t, writer.WriteValue32(m, 32, 1<<31-1))
	require.NoError(t, waiter.Synchronize())
	require.NoError(t, waiter.MemOps(), "nothing")
}

func TestMemOpsAreChecked(t *testing.T) {
	d := openDevice(t, 0)
	m, s := alloc(t, d, 64), newStream(t, d)
	for _, op := range []cuda.MemOp{cuda.Write32(m, 2, 0), cuda.Wait64(m, 4, cuda.Equal, 0), cuda.Wait32(m, 0, 4, 0), {}, cuda.Write32(nil, 0, 0)} {
		require.ErrorIs(t, s.MemOps(cuda.Write32(m, 0, 9), op), driver.ErrInvalid)
	}
	require.ErrorIs(t, s.MemOps(cuda.Write64(m, 64, 0)), driver.ErrRange)
	require.ErrorIs(t, s.WriteValue32(m, 64, 0), driver.ErrRange)
	require.ErrorIs(t, s.WaitValue32(m, 1, 0), driver.ErrInvalid)
	require.ErrorIs(t, s.MemOps(make([]cuda.MemOp, 257)...), driver.ErrInvalid)
	handle, err := m.Export()
	require.NoError(t, err)
	defer handle.Close()
	imported, err := d.Import(handle, driver.ImportOptions{})
	require.NoError(t, err)
	defer imported.Close()
	require.ErrorIs(t, s.MemOps(cuda.Write32(imported.(*cuda.Memory), 0, 1)), driver.ErrReadOnly)
	require.NoError(t, s.Synchronize())
	require.Zero(t, words(t, m, 1)[0], "nothing of a refused batch is queued")
}
