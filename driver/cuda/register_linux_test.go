package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// A read-only mapping, such as an imported slab, can be pinned.
func TestRegisterReadOnlyHostMemory(t *testing.T) {
	d := openDevice(t, 0)
	page, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(page)
	copy(page[77:], "0123456789")
	require.NoError(t, unix.Mprotect(page, unix.PROT_READ))
	_, err = d.RegisterHost(page)
	require.Error(t, err, "for writing too")
	h, err := d.RegisterHostReadOnly(page)
	require.NoError(t, err)
	m, s := alloc(t, d, 10), newStream(t, d)
	require.NoError(t, s.CopyToDevice(m, 0, h, 77, 10))
	require.ErrorIs(t, s.CopyToHost(h, 0, m, 0, 10), driver.ErrReadOnly)
	require.NoError(t, s.Synchronize())
	got := make([]byte, 10)
	_, err = m.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, "0123456789", string(got))
	require.NoError(t, h.Close())
}
