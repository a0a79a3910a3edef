package host

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// slabOf returns a slab of 64 KiB whose uses report their end to a channel.
func slabOf(t *testing.T, d *Device) (driver.Slab, func(bytes int64) driver.Memory, chan bool) {
	t.Helper()
	s, err := d.AllocSlab(1 << 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ended := make(chan bool, 1)
	return s, func(bytes int64) driver.Memory {
		t.Helper()
		m, err := s.Use(bytes, func(clean bool) { ended <- clean })
		require.NoError(t, err)
		return m
	}, ended
}

func TestSlabIsUsedAgain(t *testing.T) {
	drivertest.Leaks(t)
	s, use, ended := slabOf(t, open(t).(*Device))
	first := use(1 << 16)
	require.Same(t, s, first.Device().(driver.Slabber).SlabOf(first))
	data := first.(driver.Mapped).Data()
	data[5] = 7
	_, err := s.Use(1, nil)
	require.ErrorIs(t, err, driver.ErrBusy)
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "twice")
	require.True(t, <-ended)
	require.Nil(t, first.(driver.Mapped).Data())
	_, err = first.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, os.ErrClosed)
	second := use(100)
	require.EqualValues(t, 100, second.Bytes())
	require.False(t, second.(driver.Mapped).Exposed().Load(), "the slices of the first were good until its end")
	again := second.(driver.Mapped).Data()
	require.Len(t, again, 100)
	require.Same(t, &data[0], &again[0], "the same mapping")
	require.EqualValues(t, 7, again[5])
	require.NoError(t, second.Close())
	require.True(t, <-ended)
	for _, bytes := range []int64{-1, 1<<16 + 1} {
		_, err = s.Use(bytes, nil)
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
}

// Memory that other processes may hold, or that can no longer be written, ends unclean.
func TestSlabOfWhatOthersMayHave(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	for name, spoil := range map[string]func(driver.Memory) error{
		"exported": func(m driver.Memory) error {
			h, err := m.Export()
			if err != nil {
				return err
			}
			return h.Close()
		},
		"sealed": func(m driver.Memory) error { return m.Seal() },
	} {
		t.Run(name, func(t *testing.T) {
			_, use, ended := slabOf(t, d)
			m := use(10)
			require.NoError(t, spoil(m))
			require.NoError(t, m.Close())
			require.False(t, <-ended)
		})
	}
}

// Memory imported from Export can be written by its owner only.
func TestSlabOfAnotherProcess(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	s, use, ended := slabOf(t, d)
	h, err := s.Export()
	require.NoError(t, err)
	defer h.Close()
	_, err = d.Import(h, driver.ImportOptions{Writable: true})
	require.ErrorIs(t, err, driver.ErrReadOnly)
	theirs, err := d.ImportSlab(h)
	require.NoError(t, err)
	require.EqualValues(t, 1<<16, theirs.Bytes())
	for round := range byte(3) {
		m := use(1 << 10)
		require.True(t, m.Writable())
		n, err := m.WriteAt([]byte{round, 1}, 7)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.NoError(t, m.Close())
		require.True(t, <-ended, "the slab's own handle does not count")
		clean := make(chan bool, 1)
		view, err := theirs.Use(1<<10, func(ok bool) { clean <- ok })
		require.NoError(t, err)
		require.False(t, view.Writable())
		require.Equal(t, []byte{round, 1}, view.(driver.Mapped).Data()[7:9])
		require.NoError(t, view.Close())
		require.True(t, <-clean)
	}
	require.NoError(t, theirs.Close())
	_, err = theirs.Use(1, nil)
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestSlabWaitsForPins(t *testing.T) {
	drivertest.Leaks(t)
	s, use, ended := slabOf(t, open(t).(*Device))
	m := use(1 << 10)
	data, unpin, err := m.(driver.Mapped).Pin(true)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.NoError(t, s.Close())
	require.Empty(t, ended, "it is in use")
	data[0] = 1 // is mapped
	unpin()
	require.True(t, <-ended)
}

// Unreachable memory ends unclean. Its mapping stays if a slice of it was exposed.
func TestSlabOfForgottenMemory(t *testing.T) {
	d := open(t).(*Device)
	for _, exposed := range []bool{false, true} {
		before := driver.Leaks()
		s, use, ended := slabOf(t, d)
		var data []byte
		func() {
			if m := use(1 << 10); exposed {
				data = m.(driver.Mapped).Data()
			}
		}()
		require.Eventually(t, func() bool { runtime.GC(); return len(ended) == 1 }, 20*time.Second, time.Millisecond)
		require.False(t, <-ended)
		require.NoError(t, s.Close())
		now := driver.Leaks()
		if exposed {
			data[0] = 1 // is still mapped
			require.EqualValues(t, 1<<10, now.KeptBytes-before.KeptBytes)
		} else {
			require.EqualValues(t, 1<<10, now.ReleasedBytes-before.ReleasedBytes)
		}
	}
}
