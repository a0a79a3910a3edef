package host

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// Memory of a pool is not reused while another process holds its slab by a handle of any kind.
func TestPoolMemoryIsNotReusedWhileItsSlabIsHeld(t *testing.T) {
	drivertest.Leaks(t)
	size := int64(os.Getpagesize())
	for name, export := range map[string]func(m *memory) (driver.Handle, error){
		"slab":   func(m *memory) (driver.Handle, error) { return m.device.SlabOf(m).Export() },
		"memory": func(m *memory) (driver.Handle, error) { return m.Export() },
		"frozen": func(m *memory) (driver.Handle, error) {
			if err := m.Freeze(); err != nil {
				return driver.Handle{}, err
			}
			return m.Export()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := openPool(t, PoolOptions{})
			first := allocPool(t, p, size, 1)
			h, err := export(first)
			require.NoError(t, err)
			theirs, err := p.Import(h, driver.ImportOptions{})
			require.NoError(t, err)
			require.NoError(t, h.Close(), "the mapping holds it")
			require.NoError(t, first.Close())
			second := allocPool(t, p, size, 2)
			got := make([]byte, size)
			_, err = theirs.ReadAt(got, 0)
			require.NoError(t, err)
			require.EqualValues(t, 1, got[0], "what the other process has mapped does not change")
			require.NoError(t, second.Close())
			require.NoError(t, theirs.Close())
		})
	}
}

// The descriptor of a slab of a pool cannot be written, and the memory is reused when the last holder is gone.
func TestExportedSlabOfPoolIsReusedLater(t *testing.T) {
	drivertest.Leaks(t)
	p := openPool(t, PoolOptions{})
	size := int64(os.Getpagesize())
	first := allocPool(t, p, size, 1)
	at := address(first)
	slab := first.device.SlabOf(first)
	h, err := slab.Export()
	require.NoError(t, err)
	flags, err := unix.FcntlInt(h.File.Fd(), unix.F_GETFL, 0)
	require.NoError(t, err)
	require.Equal(t, unix.O_RDONLY, flags&unix.O_ACCMODE)
	require.NoError(t, first.Close())
	require.NoError(t, h.Close())
	second := allocPool(t, p, size, 2)
	require.Same(t, at, address(second))
	require.NoError(t, second.Close())
}
