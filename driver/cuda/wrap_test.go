package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// foreign makes a resource with package cu, like another library.
func foreign[H any](t testing.TB, d *cuda.Device, make func(h *H) cu.Result) H {
	t.Helper()
	h := new(H)
	require.NoError(t, d.Do(func() error { return make(h).Err() }))
	return *h
}

func TestWrapStream(t *testing.T) {
	d := openDevice(t, 0)
	m := alloc(t, d, 64)
	h := foreign(t, d, func(h *cu.Stream) cu.Result { return cu.StreamCreate(h, cu.STREAM_NON_BLOCKING) })
	s, err := d.WrapStream(h, cuda.Borrowed)
	require.NoError(t, err)
	require.Equal(t, h, s.Handle())
	require.NoError(t, s.Fill8(m, 0, 64, 3))
	require.NoError(t, s.Close(), "waits for the fill and leaves the stream")
	require.Equal(t, uint32(0x03030303), words(t, m, 1)[0])
	s, err = d.WrapStream(h, cuda.Owned)
	require.NoError(t, err, "the stream still exists")
	used, err := d.AllocMemory(64)
	require.NoError(t, err)
	require.NoError(t, s.Fill8(used, 0, 64, 4))
	require.NoError(t, used.Close(), "Close of memory waits for work in a wrapped stream")
	require.NoError(t, s.Close())
	require.Equal(t, cu.ERROR_INVALID_HANDLE, cu.StreamQuery(h), "an owned stream is destroyed")

	for _, h := range []cu.Stream{0, cu.STREAM_LEGACY} {
		legacy, err := d.WrapStream(h, cuda.Borrowed)
		require.NoError(t, err)
		require.NoError(t, legacy.Fill8(m, 0, 4, byte(h)))
		require.NoError(t, legacy.Synchronize())
		require.NoError(t, legacy.Close())
		_, err = d.WrapStream(h, cuda.Owned)
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
	_, err = d.WrapStream(cu.STREAM_PER_THREAD, cuda.Borrowed)
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = d.WrapStream(h, cuda.Borrowed)
	require.Error(t, err, "a destroyed stream")
	other := openDevice(t, 1)
	_, err = other.WrapStream(newStream(t, d).Handle(), cuda.Borrowed)
	require.ErrorIs(t, err, cuda.ErrContext)
}

func TestWrapEvent(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	h := foreign(t, d, func(h *cu.Event) cu.Result { return cu.EventCreate(h, cu.EVENT_DISABLE_TIMING) })
	for _, own := range []cuda.Ownership{cuda.Borrowed, cuda.Owned} {
		e, err := d.WrapEvent(h, own)
		require.NoError(t, err)
		require.NoError(t, e.Record(s))
		require.NoError(t, e.Synchronize())
		require.NoError(t, e.Close())
	}
	_, err := d.WrapEvent(h, cuda.Borrowed)
	require.Error(t, err, "an owned event is destroyed")
}

func TestWrapMemory(t *testing.T) {
	d, other := openDevice(t, 0), openDevice(t, 1)
	p := foreign(t, d, func(p *cu.DevicePtr) cu.Result { return cu.MemAlloc(p, 4096) })
	part, err := d.WrapMemory(p+1024, 1024, cuda.Borrowed)
	require.NoError(t, err)
	_, err = part.WriteAt([]byte("hello"), 0)
	require.NoError(t, err)
	handle, err := part.Export()
	require.NoError(t, err)
	require.EqualValues(t, 1024, handle.Offset, "a handle is of the whole allocation")
	require.NoError(t, part.Close())
	whole, err := d.WrapMemory(p, 4096, cuda.Owned)
	require.NoError(t, err, "borrowed memory is not freed")
	got := make([]byte, 5)
	_, err = whole.ReadAt(got, 1024)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))

	for name, err := range map[string]error{
		"past the end":   second(d.WrapMemory(p, 4097, cuda.Borrowed)),
		"beyond the end": second(d.WrapMemory(p+4095, 2, cuda.Borrowed)),
	} {
		require.ErrorIs(t, err, driver.ErrRange, name)
	}
	for name, err := range map[string]error{
		"owned part":     second(d.WrapMemory(p+1024, 1024, cuda.Owned)),
		"no bytes":       second(d.WrapMemory(p, 0, cuda.Borrowed)),
		"null":           second(d.WrapMemory(0, 1, cuda.Borrowed)),
		"not an address": second(d.WrapMemory(12345, 1, cuda.Borrowed)),
		"another device": second(other.WrapMemory(p, 4096, cuda.Borrowed)),
	} {
		require.ErrorIs(t, err, driver.ErrInvalid, name)
	}
	require.NoError(t, whole.Close())
	_, err = d.WrapMemory(p, 4096, cuda.Borrowed)
	require.ErrorIs(t, err, driver.ErrInvalid, "owned memory is freed")
}

func TestWrapContext(t *testing.T) {
	primary := openDevice(t, 1)
	ctx := foreign(t, primary, func(c *cu.Context) cu.Result {
		r := cu.CtxCreate_v2(c, 0, primary.Handle())
		cu.CtxPopCurrent(nil)
		return r
	})
	for _, own := range []cuda.Ownership{cuda.Borrowed, cuda.Owned} {
		d, err := cuda.WrapContext(ctx, own)
		require.NoError(t, err)
		require.Equal(t, ctx, d.Context())
		require.Equal(t, primary.Info().UUID, d.Info().UUID)
		m, err := d.AllocMemory(64)
		require.NoError(t, err)
		s, err := d.NewStream(cuda.StreamOptions{})
		require.NoError(t, err)
		_, err = primary.WrapStream(s.Handle(), cuda.Borrowed)
		require.ErrorIs(t, err, cuda.ErrContext)
		require.NoError(t, s.Fill8(m, 0, 64, 1))
		require.NoError(t, m.Close())
		require.NoError(t, s.Close())
		require.NoError(t, d.Close())
	}
	_, err := cuda.WrapContext(ctx, cuda.Borrowed)
	require.ErrorIs(t, err, cuda.ErrContext, "an owned context is destroyed with its last object")
}
