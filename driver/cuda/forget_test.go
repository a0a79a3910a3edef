package cuda_test

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

// Objects with an exposed slice, address or handle are kept when they become unreachable without Close.
func TestExposedObjectsAreNotCollected(t *testing.T) {
	if childWith(t, "forget", cudatest.Options{}) {
		return
	}
	d, err := cuda.Open(0)
	require.NoError(t, err)
	page := make([]byte, 4096)
	var data []byte
	var base, reserved uint64
	for name, forget := range map[string]func(){
		"pinned host memory": func() {
			m, err := d.AllocHost(1 << 20)
			require.NoError(t, err)
			data = m.Data()
		},
		"memory": func() {
			m, err := d.AllocMemory(5 << 20) // has objects for its addresses and its allocation
			require.NoError(t, err)
			base = m.DevicePointer()
		},
		"address range": func() {
			r, err := d.ReserveAddresses(2<<20, 0)
			require.NoError(t, err)
			reserved = uint64(r.Base())
		},
		"stream": func() {
			s, err := d.NewStream(cuda.StreamOptions{})
			require.NoError(t, err)
			require.NotZero(t, s.Handle())
		},
		"event": func() {
			e, err := d.NewEvent(cuda.EventOptions{})
			require.NoError(t, err)
			require.NotZero(t, e.Handle())
		},
	} {
		told := make(chan driver.Leak, 10)
		driver.OnLeak(func(l driver.Leak) { told <- l })
		forget()
		var leak driver.Leak
		collect(t, func() bool {
			select {
			case leak = <-told:
				return true
			case <-time.After(time.Millisecond):
				return false
			}
		})
		driver.OnLeak(nil)
		require.Equal(t, name, leak.Kind)
		require.Equal(t, "cuda:0", leak.Device)
		require.True(t, leak.Kept, name)
	}
	for range 5 { // cleanups of a part must not release them later
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	copy(data, bytes.Repeat([]byte{7}, len(data)))
	for range 5 {
		h, err := d.AllocHost(1 << 20)
		require.NoError(t, err)
		copy(h.Data(), make([]byte, 1<<20))
		require.NoError(t, h.Close())
		m, err := d.AllocMemory(5 << 20)
		require.NoError(t, err)
		require.NotEqual(t, base, m.DevicePointer())
		require.NotEqual(t, reserved, m.DevicePointer())
		require.NoError(t, m.Close())
	}
	require.Equal(t, bytes.Repeat([]byte{7}, len(data)), data)

	before := driver.Leaks()
	func() {
		r, err := d.RegisterHost(page)
		require.NoError(t, err)
		_ = r.Data() // the caller owns this memory
	}()
	collect(t, func() bool { time.Sleep(time.Millisecond); return driver.Leaks().Released > before.Released })
	require.Equal(t, before.Kept, driver.Leaks().Kept)
}

// Cleanups of the rest of the process continue while queued work uses unreachable memory.
func TestForgottenObjectsDoNotBlockCleanups(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	flag := alloc(t, d, 8)
	require.NoError(t, s.WaitValue64(flag, 0, 1))
	before := driver.Leaks()
	func() {
		m, err := d.AllocLegacy(4096)
		require.NoError(t, err)
		require.NoError(t, s.Fill8(m, 0, 4096, 1))
	}()
	for range 3 { // one of these cycles finds the unreachable memory
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
	}
	ran := make(chan struct{})
	func() { runtime.AddCleanup(new([64]byte), func(ran chan struct{}) { close(ran) }, ran) }()
	collect(t, func() bool {
		select {
		case <-ran:
			return true
		case <-time.After(time.Millisecond):
			return false
		}
	})
	require.Equal(t, before, driver.Leaks(), "given back before the work was done")
	other := newStream(t, d)
	require.NoError(t, other.WriteValue64(flag, 0, 1))
	require.NoError(t, other.Synchronize())
	collect(t, func() bool { time.Sleep(time.Millisecond); return driver.Leaks().Released > before.Released })
}
