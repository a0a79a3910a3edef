package drivertest

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// sealer returns memory that can be sealed, or skips.
func (e *env) sealer(t *testing.T, bytes int64) driver.Memory {
	t.Helper()
	if err := e.alloc(t, bytes).Seal(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the device's memory cannot be sealed")
	}
	return e.alloc(t, bytes)
}

// A seal during a load does not interrupt the load.
func testSealDuringLoad(t *testing.T, e *env) {
	const size = 9<<20 + 5
	data := pattern(size, 42)
	for name, src := range map[string]interface {
		ReadAt([]byte, int64) (int, error)
	}{"file": sourceFile(t, data), "bytes": bytes.NewReader(data)} {
		t.Run(name, func(t *testing.T) {
			s := e.sealer(t, size)
			l, ok := s.(driver.Loader)
			if !ok {
				t.Skip("the device's memory is no driver.Loader")
			}
			asked := 0
			require.NoError(t, l.LoadAt(src, 0, 0, size, func(int64) {
				asked++
				if err := s.Seal(); !errors.Is(err, driver.ErrBusy) {
					t.Errorf("a seal in the middle of a load: %v", err)
				}
			}))
			require.Positive(t, asked)
			requireBytes(t, s, data)
			require.NoError(t, s.Seal())
			require.False(t, s.Writable())
			require.ErrorIs(t, l.LoadAt(src, 0, 0, size, nil), driver.ErrReadOnly)
			_, err := s.WriteAt([]byte{1}, 0)
			require.ErrorIs(t, err, driver.ErrReadOnly)
			if m, ok := s.(driver.Mapped); ok {
				_, _, err := m.Pin(true)
				require.ErrorIs(t, err, driver.ErrReadOnly)
				read, unpin, err := m.Pin(false)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, read))
				unpin()
			}
			requireBytes(t, s, data)
		})
	}
}

// Memory is sealed while it is written by every method. Writers continue until they are refused, the seal is retried
// until it succeeds.
func testSealDuringWrites(t *testing.T, e *env) {
	file := sourceFile(t, pattern(sealedSize, 43))
	for range 5 {
		sealDuringWrites(t, e.sealer(t, sealedSize), file)
	}
}

// sealedSize is the size of the memory that is sealed while it is written.
const sealedSize = 5 << 20

func sealDuringWrites(t *testing.T, s driver.Memory, file *os.File) {
	var writers, writing sync.WaitGroup
	write := func(how func() error) {
		writing.Add(1)
		writers.Go(func() {
			begun := sync.OnceFunc(writing.Done)
			defer begun()
			for i := 0; ; i++ {
				if i == 1 { // probably during a write
					begun()
				}
				err := how()
				if errors.Is(err, driver.ErrReadOnly) {
					return
				} else if err != nil {
					t.Errorf("neither written nor refused: %v", err)
					return
				}
				time.Sleep(50 * time.Microsecond) // without a pause the writers would never leave a gap
			}
		})
	}
	piece := pattern(100_000, 44)
	write(func() error { _, err := s.WriteAt(piece, 3); return err })
	if l, ok := s.(driver.Loader); ok {
		write(func() error { return l.LoadAt(file, 0, 1<<20, 1<<20, nil) })
		write(func() error { return l.LoadAt(bytes.NewReader(piece), 0, 77, int64(len(piece)), nil) })
	}
	if m, ok := s.(driver.Mapped); ok {
		write(func() error {
			data, unpin, err := m.Pin(true)
			if err == nil {
				copy(data[3<<20:], piece)
				unpin()
			}
			return err
		})
	}
	writing.Wait()
	deadline := time.Now().Add(collectLimit)
	err := s.Seal()
	for ; errors.Is(err, driver.ErrBusy) && time.Now().Before(deadline); err = s.Seal() {
		time.Sleep(10 * time.Microsecond)
	}
	require.NoError(t, err)
	final := make([]byte, sealedSize)
	_, err = s.ReadAt(final, 0)
	require.NoError(t, ignoreEOF(err))
	writers.Wait()
	requireBytes(t, s, final)
}

// A pinned slice of closed memory stays valid until it is unpinned.
func testCloseDuringPin(t *testing.T, e *env) {
	m, data := e.filled(t, 70_000, 45)
	mapped, ok := m.(driver.Mapped)
	if !ok {
		t.Skip("the device's memory is no driver.Mapped")
	}
	first, unpinFirst, err := mapped.Pin(false)
	require.NoError(t, err)
	second, unpinSecond, err := mapped.Pin(true)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, _, err = mapped.Pin(false)
	require.Error(t, err)
	unpinFirst()
	require.True(t, bytes.Equal(data, second))
	second[0]++
	require.Equal(t, second[0], first[0])
	unpinSecond() // the count of mappings shows that none is left
}

// A second call of an unpin has no effect: the pins of others still keep closed memory mapped, and keep it from being
// sealed.
func testUnpinTwice(t *testing.T, e *env) {
	m, data := e.filled(t, 70_000, 46)
	mapped, ok := m.(driver.Mapped)
	if !ok {
		t.Skip("the device's memory is no driver.Mapped")
	}
	_, unpinFirst, err := mapped.Pin(true)
	require.NoError(t, err)
	second, unpinSecond, err := mapped.Pin(true)
	require.NoError(t, err)
	unpinFirst()
	unpinFirst()
	if err := m.Seal(); !errors.Is(err, errors.ErrUnsupported) {
		require.ErrorIs(t, err, driver.ErrBusy)
	}
	require.NoError(t, m.Close())
	unpinFirst()
	require.True(t, bytes.Equal(data, second))
	unpinSecond()
	unpinSecond()
}
