package compute

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

func TestMemory(t *testing.T) {
	var dev heapDevice
	for _, size := range []int64{0, 1, 64<<10 - 1, 64 << 10, 1<<20 + 1} {
		for range 3 { // reused memory is zeroed
			m, err := dev.Alloc(size)
			require.NoError(t, err)
			data := m.(driver.Mapped).Data()
			require.Len(t, data, int(size))
			require.Equal(t, int(size), bytes.Count(data, []byte{0}))
			for i := range data {
				data[i] = 0xff
			}
			_, err = m.WriteAt([]byte{1}, size)
			require.ErrorIs(t, err, driver.ErrRange)
			require.NoError(t, m.Close())
			require.NoError(t, m.Close())
			_, err = m.ReadAt(make([]byte, 1), 0)
			require.ErrorIs(t, err, os.ErrClosed)
		}
	}
	_, err := dev.Alloc(-1)
	require.ErrorIs(t, err, driver.ErrInvalid)
}

// A second call of an unpin function does not release the pin of another holder, whose bytes would be reused.
func TestUnpinTwice(t *testing.T) {
	var dev heapDevice
	m, err := dev.Alloc(64 << 10)
	require.NoError(t, err)
	mapped := m.(driver.Mapped)
	_, unpinFirst, err := mapped.Pin(true)
	require.NoError(t, err)
	second, unpinSecond, err := mapped.Pin(true)
	require.NoError(t, err)
	unpinFirst()
	unpinFirst()
	require.NoError(t, m.Close())
	for range 100 { // recycled memory would be among these
		other, err := dev.AllocDirty(64 << 10)
		require.NoError(t, err)
		require.NotSame(t, &second[0], &other.Data()[0])
	}
	unpinSecond()
	unpinSecond()
}
