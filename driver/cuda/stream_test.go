package cuda_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

// keep closes an object at the end of the test.
func keep[T closer](t testing.TB, c T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func newStream(t testing.TB, d *cuda.Device) *cuda.Stream {
	t.Helper()
	s, err := d.NewStream(cuda.StreamOptions{})
	return keep(t, s, err)
}

func alloc(t testing.TB, d *cuda.Device, bytes int64) *cuda.Memory {
	t.Helper()
	m, err := d.AllocMemory(bytes)
	return keep(t, m, err)
}

func host(t testing.TB, d *cuda.Device, bytes int64) *cuda.HostMemory {
	t.Helper()
	h, err := d.AllocHost(bytes)
	return keep(t, h, err)
}

func TestCopiesAreAsynchronous(t *testing.T) {
	d := openDevice(t, 0)
	m, other := alloc(t, d, 1<<20), alloc(t, d, 1<<20)
	up, down := host(t, d, 1<<20), host(t, d, 1<<20)
	s := newStream(t, d)
	for i := range up.Data() {
		up.Data()[i] = byte(i * 7)
	}
	require.NoError(t, s.CopyToDevice(m, 0, up, 0, 1<<20))
	require.NoError(t, s.CopyOnDevice(other, 5, m, 3, 1000))
	require.NoError(t, s.Fill32(other, 2000, 3, 0x01020304))
	require.NoError(t, s.Fill16(other, 3000, 2, 0x0506))
	require.NoError(t, s.Fill8(other, 4000, 2, 7))
	require.NoError(t, s.CopyToHost(down, 0, other, 0, 1<<20))
	require.NotEqual(t, up.Data()[3:1003], down.Data()[5:1005], "the stand-in does queued work only when somebody waits for it")
	require.NoError(t, s.Synchronize())
	require.Equal(t, up.Data()[3:1003], down.Data()[5:1005])
	require.Equal(t, bytes.Repeat([]byte{4, 3, 2, 1}, 3), down.Data()[2000:2012])
	require.Equal(t, []byte{6, 5, 6, 5}, down.Data()[3000:3004])
	require.Equal(t, []byte{7, 7, 0}, down.Data()[4000:4003])
	idle, err := s.Idle()
	require.NoError(t, err)
	require.True(t, idle)
}

func TestBadCopiesAreRefused(t *testing.T) {
	d := openDevice(t, 0)
	m, h, s := alloc(t, d, 100), host(t, d, 100), newStream(t, d)
	require.ErrorIs(t, s.CopyToDevice(m, 1, h, 0, 100), driver.ErrRange)
	require.ErrorIs(t, s.CopyToDevice(m, 0, h, 1, 100), driver.ErrRange)
	require.ErrorIs(t, s.CopyToHost(h, -1, m, 0, 10), driver.ErrRange)
	require.ErrorIs(t, s.CopyOnDevice(m, 0, m, 5, 10), driver.ErrInvalid, "overlap")
	require.ErrorIs(t, s.Fill32(m, 0, 26, 0), driver.ErrRange)
	require.ErrorIs(t, s.Fill32(m, 2, 1, 0), driver.ErrInvalid, "not aligned")
	require.ErrorIs(t, s.Fill32(m, 0, 1<<62, 0), driver.ErrRange, "overflow")

	handle, err := m.Export()
	require.NoError(t, err)
	defer handle.Close()
	imported, err := d.Import(handle, driver.ImportOptions{})
	require.NoError(t, err)
	defer imported.Close()
	require.ErrorIs(t, s.Fill8(imported.(*cuda.Memory), 0, 1, 1), driver.ErrReadOnly)
	require.ErrorIs(t, s.CopyToDevice(imported.(*cuda.Memory), 0, h, 0, 1), driver.ErrReadOnly)
}

func TestUseAfterClose(t *testing.T) {
	d := openDevice(t, 0)
	m, h, s := alloc(t, d, 100), host(t, d, 100), newStream(t, d)
	e, err := d.NewEvent(cuda.EventOptions{})
	require.NoError(t, err)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.ErrorIs(t, s.Wait(e), os.ErrClosed)
	require.ErrorIs(t, e.Record(s), os.ErrClosed)
	require.ErrorIs(t, e.Synchronize(), os.ErrClosed)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Synchronize(), os.ErrClosed)
	require.ErrorIs(t, s.Fill8(m, 0, 1, 0), os.ErrClosed)
	require.ErrorIs(t, s.CopyToDevice(m, 0, h, 0, 1), os.ErrClosed)
	require.Zero(t, s.Handle())
	require.NoError(t, h.Close())
	require.Nil(t, h.Data())

	closed, err := cuda.Open(0)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, err = closed.NewStream(cuda.StreamOptions{})
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = closed.AllocMemory(1)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, closed.Synchronize(), os.ErrClosed)
}

// Each object keeps the context alive, so the device can be closed first.
func TestObjectsOutliveTheDevice(t *testing.T) {
	fake := startFake(t)
	d, err := cuda.Open(0)
	require.NoError(t, err)
	s, err := d.NewStream(cuda.StreamOptions{})
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.NoError(t, s.Synchronize())
	require.EqualValues(t, 1, fake.Live()["contexts"])
	require.NoError(t, s.Close())
	require.Empty(t, fake.Live()["contexts"])
}

func TestEventsOrderStreams(t *testing.T) {
	d := openDevice(t, 0)
	m, h := alloc(t, d, 64), host(t, d, 64)
	first, second := newStream(t, d), newStream(t, d)
	start, err := d.NewEvent(cuda.EventOptions{Timing: true})
	keep(t, start, err)
	end, err := d.NewEvent(cuda.EventOptions{Timing: true})
	keep(t, end, err)
	done, err := end.Done()
	require.NoError(t, err)
	require.True(t, done, "never recorded")

	require.NoError(t, start.Record(first))
	require.NoError(t, first.Fill8(m, 0, 64, 9))
	require.NoError(t, end.Record(first))
	require.NoError(t, second.Wait(end))
	require.NoError(t, second.CopyToHost(h, 0, m, 0, 64))
	require.NoError(t, second.Synchronize())
	require.Equal(t, bytes.Repeat([]byte{9}, 64), h.Data())
	took, err := end.Since(start)
	require.NoError(t, err)
	require.GreaterOrEqual(t, took, took*0)

	_, err = d.NewEvent(cuda.EventOptions{Timing: true, Interprocess: true})
	require.ErrorIs(t, err, driver.ErrInvalid)
}

func TestMemoryValues(t *testing.T) {
	d := openDevice(t, 0)
	m := alloc(t, d, 64)
	waiter, writer := newStream(t, d), newStream(t, d)
	require.NoError(t, waiter.WaitValue64(m, 8, 5))
	require.NoError(t, waiter.Fill8(m, 0, 1, 3))
	require.NoError(t, writer.WriteValue64(m, 8, 6))
	require.NoError(t, writer.Synchronize())
	require.NoError(t, waiter.Synchronize())
	got := make([]byte, 16)
	_, err := m.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, []byte{3, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0}, got)
	require.ErrorIs(t, writer.WriteValue64(m, 4, 1), driver.ErrInvalid)
	require.ErrorIs(t, writer.WriteValue64(m, 64, 1), driver.ErrRange)
}

func TestPools(t *testing.T) {
	d := openDevice(t, 0)
	pool, err := d.NewPool()
	keep(t, pool, err)
	s := newStream(t, d)
	require.NoError(t, pool.SetReleaseThreshold(1<<20))
	m, err := s.Alloc(pool, 1000)
	require.NoError(t, err)
	u, err := pool.Usage()
	require.NoError(t, err)
	require.NotZero(t, u.Used)
	_, err = m.Export()
	require.ErrorIs(t, err, errUnsupported)
	require.NoError(t, s.Fill8(m, 0, 1000, 1))
	require.NoError(t, s.Free(m))
	require.NoError(t, s.Free(m), "a second Free")
	require.NoError(t, m.Close())
	require.NoError(t, s.Synchronize())
	require.NoError(t, pool.Trim(0))
	u, err = pool.Usage()
	require.NoError(t, err)
	require.Zero(t, u.Used)

	std, err := d.DefaultPool()
	keep(t, std, err)
	m, err = s.Alloc(std, 10)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.ErrorIs(t, s.Free(alloc(t, d, 1)), driver.ErrInvalid)
}

// Memory of two devices, each mapped only for its own device, can be copied.
func TestCopyAcrossDevices(t *testing.T) {
	d, other := openDevice(t, 0), openDevice(t, 1)
	s := newStream(t, d)
	near, far := alloc(t, d, 3<<20), alloc(t, other, 3<<20)
	want := bytes.Repeat([]byte("abc"), 1<<20)
	_, err := far.WriteAt(want, 0)
	require.NoError(t, err)
	require.NoError(t, s.CopyOnDevice(near, 0, far, 0, 3<<20))
	require.NoError(t, s.CopyOnDevice(far, 1, near, 0, 1<<20))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 3<<20)
	_, err = near.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	_, err = far.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want[:1<<20], got[1:1<<20+1]))

	h, err := far.Export()
	require.NoError(t, err)
	defer h.Close()
	readOnly, err := other.Import(h, driver.ImportOptions{})
	require.NoError(t, err)
	defer readOnly.Close()
	require.NoError(t, s.CopyOnDevice(near, 0, readOnly.(*cuda.Memory), 0, 100), "and from what may only be read")
	require.NoError(t, s.Synchronize())
}

// A copy between devices that cannot access each other is refused.
func TestCopyAcrossUnconnectedDevices(t *testing.T) {
	if childWith(t, "nop2p", cudatest.Options{Devices: 2, Without: []string{"p2p", "rohost"}}) {
		return
	}
	d, err := cuda.Open(0)
	require.NoError(t, err)
	other, err := cuda.Open(1)
	require.NoError(t, err)
	near, far := alloc(t, d, 100), alloc(t, other, 100)
	err = newStream(t, d).CopyOnDevice(near, 0, far, 0, 100)
	var unsupported *driver.UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	require.ErrorContains(t, err, "by way of the host", "what to do instead")
	_, err = d.RegisterHostReadOnly(make([]byte, 4096))
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestRegisteredHostMemory(t *testing.T) {
	d := openDevice(t, 0)
	page := make([]byte, 8192)
	h, err := d.RegisterHost(page)
	require.NoError(t, err)
	_, err = d.RegisterHost(page[100:200])
	require.Error(t, err, "registered already")
	m, s := alloc(t, d, 10), newStream(t, d)
	copy(page[77:], "0123456789")
	require.NoError(t, s.CopyToDevice(m, 0, h, 77, 10))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 10)
	_, err = m.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, "0123456789", string(got))
	require.NoError(t, h.Close())
	_, err = d.RegisterHost(nil)
	require.ErrorIs(t, err, driver.ErrInvalid)
}
