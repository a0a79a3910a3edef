package drivertest

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

func testInfo(t *testing.T, e *env) {
	info := e.Info()
	require.NotZero(t, info.Type)
	require.False(t, info.UUID.IsZero(), "a device without a UUID cannot be found by another process")
	require.NotEmpty(t, info.Name)
	require.Positive(t, info.Granularity)
	require.Zero(t, info.Granularity&(info.Granularity-1), "granularity %d is no power of two", info.Granularity)
	require.GreaterOrEqual(t, info.TotalBytes, int64(0))
	require.Equal(t, info, e.Info())

	other, err := startPeer(t, e.options).info()
	require.NoError(t, err)
	require.Equal(t, info.UUID, other.UUID, "the same device has another UUID in another process")
	require.Equal(t, info.Granularity, other.Granularity)
}

// sizes returns sizes around every rounding boundary of a device.
func sizes(granularity int64) []int64 {
	return []int64{0, 1, 2, 3, 255, 4095, 4096, 4097, granularity - 1, granularity, granularity + 1, 3*granularity + 5, 1<<20 + 13}
}

func testSizes(t *testing.T, e *env) {
	for _, size := range sizes(e.Info().Granularity) {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			m := e.alloc(t, size)
			require.Equal(t, size, m.Bytes())
			require.True(t, m.Writable())
			require.Same(t, e.Device, m.Device())
			requireBytes(t, m, make([]byte, size)) // zeroed

			data := pattern(int(size), 1)
			write(t, m, data)
			requireBytes(t, m, data)
			if size < 16 {
				return
			}
			part := make([]byte, size/3)
			_, err := m.ReadAt(part, 7)
			require.NoError(t, err)
			require.True(t, string(part) == string(data[7:7+len(part)]))
			_, err = m.WriteAt([]byte{0xaa, 0xbb, 0xcc}, size-3)
			require.NoError(t, err)
			copy(data[size-3:], []byte{0xaa, 0xbb, 0xcc})
			requireBytes(t, m, data)
		})
	}
}

func testRefusedSizes(t *testing.T, e *env) {
	for _, test := range []struct {
		bytes int64
		want  error
	}{
		{-1, driver.ErrInvalid},
		{math.MinInt64, driver.ErrInvalid},
		{1 << 50, driver.ErrOutOfMemory},
		{1<<62 + 1, driver.ErrOutOfMemory},
		{math.MaxInt64, driver.ErrOutOfMemory},
	} {
		m, err := e.Alloc(test.bytes)
		require.ErrorIs(t, err, test.want, "%d bytes", test.bytes)
		require.Nil(t, m)
	}
	e.alloc(t, 1) // the device still works
}

func testRanges(t *testing.T, e *env) {
	const size = 1000
	m, data := e.filled(t, size, 2)
	b := make([]byte, 16)

	n, err := m.ReadAt(b, size-4)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 4, n)
	require.Equal(t, data[size-4:], b[:4])
	for _, off := range []int64{size, size + 1, math.MaxInt64} {
		n, err := m.ReadAt(b, off)
		require.ErrorIs(t, err, io.EOF, "offset %d", off)
		require.Zero(t, n)
	}
	n, err = m.ReadAt(b, size-16)
	require.NoError(t, ignoreEOF(err))
	require.Equal(t, 16, n)
	_, err = m.ReadAt(nil, 0)
	require.NoError(t, err)
	for _, off := range []int64{-1, math.MinInt64} {
		_, err := m.ReadAt(b, off)
		require.ErrorIs(t, err, driver.ErrRange, "offset %d", off)
	}

	for _, off := range []int64{-1, math.MinInt64, size - 15, size, size + 1, math.MaxInt64, math.MaxInt64 - 15} {
		n, err := m.WriteAt(b, off)
		require.ErrorIs(t, err, driver.ErrRange, "offset %d", off)
		require.Zero(t, n)
	}
	_, err = m.WriteAt(nil, size)
	require.NoError(t, err)
	requireBytes(t, m, data)
}

// ignoreEOF drops io.EOF of a read that ends at the end of the memory: [io.ReaderAt] may return it or not.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func testAddressed(t *testing.T, e *env) {
	m, data := e.filled(t, 4099, 3)
	mapped, isMapped := m.(driver.Mapped)
	if isMapped {
		got := mapped.Data()
		require.Equal(t, data, got)
		require.Equal(t, len(got), cap(got), "bytes behind the memory can be reached by append")
		got[17] ^= 0xff
		data[17] ^= 0xff
		requireBytes(t, m, data)
		require.Empty(t, e.alloc(t, 0).(driver.Mapped).Data())
	}
	addressable, isAddressable := m.(driver.Addressable)
	if isAddressable {
		require.NotZero(t, addressable.DevicePointer())
		require.Zero(t, addressable.DevicePointer()%256, "tensors are laid out for memory that begins at a multiple of 256")
	}
	require.True(t, isMapped || isAddressable, "memory that nobody can address")
}

func testConcurrentCopies(t *testing.T, e *env) {
	const workers, part, rounds = 8, 10007, 20
	m := e.alloc(t, workers*part)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			got := make([]byte, part)
			for round := range rounds {
				want := pattern(part, byte(w*rounds+round))
				_, writeErr := m.WriteAt(want, int64(w*part))
				_, readErr := m.ReadAt(got, int64(w*part))
				if writeErr != nil || ignoreEOF(readErr) != nil || string(got) != string(want) {
					t.Errorf("worker %d, round %d: write %v, read %v", w, round, writeErr, readErr)
					return
				}
			}
		})
	}
	group.Wait()
}

// testCloseDuringCopies closes memory during copies. They succeed or return os.ErrClosed.
func testCloseDuringCopies(t *testing.T, e *env) {
	m, data := e.filled(t, 64<<10, 4)
	var group, started sync.WaitGroup
	for w := range 4 {
		started.Add(1)
		group.Go(func() {
			got := make([]byte, len(data))
			for first := true; ; first = false {
				_, err := m.ReadAt(got, 0)
				if first {
					started.Done()
				}
				if errors.Is(err, os.ErrClosed) {
					return
				}
				if ignoreEOF(err) != nil || string(got) != string(data) {
					t.Errorf("worker %d: other bytes, or %v", w, err)
					return
				}
				if h, err := m.Export(); err == nil {
					h.Close()
				} else if !errors.Is(err, os.ErrClosed) {
					t.Errorf("worker %d: %v", w, err)
				}
			}
		})
	}
	started.Wait()
	for range 3 {
		group.Go(func() {
			if err := m.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	group.Wait()
}

func testUseAfterClose(t *testing.T, e *env) {
	m, err := e.Alloc(100)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.NoError(t, m.Close(), "a second Close")

	b := make([]byte, 1)
	_, err = m.ReadAt(b, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = m.WriteAt(b, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = m.Export()
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = m.Handle()
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = m.Describe()
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, m.Freeze(), os.ErrClosed)
	require.ErrorIs(t, m.Seal(), os.ErrClosed)
	require.Error(t, m.CopyFrom(0, m, 50, 10))
	if l, ok := m.(driver.Loader); ok {
		require.ErrorIs(t, l.LoadAt(zeros{}, 0, 0, 1, nil), os.ErrClosed)
	}
	if mapped, ok := m.(driver.Mapped); ok {
		require.Nil(t, mapped.Data())
	}
	if a, ok := m.(driver.Addressable); ok {
		require.Zero(t, a.DevicePointer())
	}
	require.Equal(t, int64(100), m.Bytes())
	require.True(t, m.Writable())
	require.Same(t, e.Device, m.Device())
}

func testDeviceClose(t *testing.T, e *env) {
	m, err := e.Alloc(10)
	require.NoError(t, err)
	h := export(t, m)
	require.NoError(t, m.Close())
	info := e.Info()
	require.NoError(t, e.Close())
	require.NoError(t, e.Close(), "a second Close")
	_, err = e.Alloc(10)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = e.Import(h, driver.ImportOptions{})
	require.ErrorIs(t, err, os.ErrClosed)
	require.Equal(t, info, e.Info())
}
