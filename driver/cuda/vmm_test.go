package cuda_test

import (
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

const granule = 2 << 20

func TestVirtualMemory(t *testing.T) {
	drivertest.Leaks(t)
	fake := startFake(t)
	d := openDevice(t, 0)
	other := openDevice(t, 1)
	for _, recommended := range []bool{false, true} {
		g, err := d.Granularity(cuda.FileHandle, recommended)
		require.NoError(t, err)
		require.EqualValues(t, granule, g)
	}
	r, err := d.ReserveAddresses(4*granule, granule)
	keep(t, r, err)
	require.NotZero(t, r.Base())
	require.EqualValues(t, 4*granule, r.Bytes())
	a, err := d.CreateAllocation(granule, cuda.FileHandle)
	require.NoError(t, err)
	require.EqualValues(t, granule, a.Bytes())
	require.NoError(t, r.Map(granule, a, granule))
	require.NoError(t, r.Map(3*granule, a, granule), "the same memory at two addresses")
	require.ErrorIs(t, r.Map(granule, a, granule), driver.ErrInvalid, "taken")
	require.ErrorIs(t, r.Map(0, a, 2*granule), driver.ErrInvalid, "more than there is")
	require.ErrorIs(t, r.Map(100, a, granule), driver.ErrInvalid, "not aligned")
	require.ErrorIs(t, r.Map(4*granule, a, granule), driver.ErrInvalid, "outside")
	require.ErrorIs(t, r.SetAccess(d, 0, granule, cuda.ReadWrite), driver.ErrInvalid, "nothing mapped")
	require.NoError(t, r.SetAccess(d, granule, granule, cuda.ReadWrite))
	require.NoError(t, r.SetAccess(other, granule, granule, cuda.ReadOnly))
	require.NoError(t, a.Close(), "the mapping keeps the memory")
	require.NoError(t, r.Unmap(3*granule))
	require.ErrorIs(t, r.Unmap(3*granule), driver.ErrInvalid)
	require.Equal(t, int64(1), fake.Live()["mappings"])
	_, err = a.ExportFile()
	require.ErrorIs(t, err, os.ErrClosed)
	require.NoError(t, r.Close())
	require.Zero(t, r.Base())
	require.ErrorIs(t, r.Map(0, a, granule), os.ErrClosed)

	_, err = d.CreateAllocation(100, 0)
	require.ErrorIs(t, err, driver.ErrInvalid, "no multiple of the granularity")
	_, err = d.ReserveAddresses(-1, 0)
	require.ErrorIs(t, err, driver.ErrInvalid)
}

func TestHandleTypesAreFixed(t *testing.T) {
	d := openDevice(t, 0)
	plain, err := d.CreateAllocation(granule, 0)
	keep(t, plain, err)
	_, err = plain.ExportFile()
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = plain.ExportFabric()
	require.ErrorIs(t, err, driver.ErrInvalid)

	both, err := d.CreateAllocation(2*granule, cuda.FileHandle|cuda.FabricHandle) // fabric handles need this granularity
	keep(t, both, err)
	f, err := both.ExportFile()
	keep(t, f, err)
	fabric, err := both.ExportFabric()
	require.NoError(t, err)
	fromFile, err := d.ImportFile(f)
	keep(t, fromFile, err)
	fromFabric, err := d.ImportFabric(fabric)
	keep(t, fromFabric, err)
	same, err := fromFabric.ExportFabric()
	require.NoError(t, err)
	require.Equal(t, fabric, same)
	fabric[20] ^= 1
	_, err = d.ImportFabric(fabric)
	require.Error(t, err)
}

// The driver exports only allocations that this process created. Of an imported one, the descriptor is duplicated.
func TestImportedMemoryIsExported(t *testing.T) {
	d := openDevice(t, 0)
	drivertest.Leaks(t)
	m := alloc(t, d, 100)
	_, err := m.WriteAt([]byte("bytes"), 0)
	require.NoError(t, err)
	h, err := m.Export()
	require.NoError(t, err)
	files := drivertest.OpenFiles()
	imported, err := d.Import(h, driver.ImportOptions{Writable: true})
	require.NoError(t, err)
	require.Greater(t, drivertest.OpenFiles(), files)
	again, err := imported.Export()
	require.NoError(t, err)
	require.NotEqual(t, h.File.Fd(), again.File.Fd())
	require.NoError(t, h.Close())
	require.NoError(t, m.Close())
	require.NoError(t, imported.Close())
	third, err := d.Import(again, driver.ImportOptions{})
	require.NoError(t, err)
	require.NoError(t, again.Close())
	got := make([]byte, 5)
	_, err = third.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, "bytes", string(got))
	require.NoError(t, third.Close())

	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	files = drivertest.OpenFiles()
	_, err = d.Import(driver.Handle{Kind: driver.CUDAFD, Device: d.Info().UUID, Bytes: 1, File: null}, driver.ImportOptions{})
	require.ErrorIs(t, err, driver.ErrHandle)
	require.Equal(t, files, drivertest.OpenFiles())
	require.NoError(t, null.Close())
	_, err = d.ImportFile(null)
	require.ErrorIs(t, err, driver.ErrHandle, "a closed file")
}

// A valid descriptor with the UUID of another device is refused.
func TestMemoryOfAnotherDevice(t *testing.T) {
	d, other := openDevice(t, 0), openDevice(t, 1)
	h, err := alloc(t, other, 10).Export()
	require.NoError(t, err)
	defer h.Close()
	_, err = d.Import(h, driver.ImportOptions{})
	require.ErrorIs(t, err, driver.ErrHandle)
	h.Device = d.Info().UUID
	_, err = d.Import(h, driver.ImportOptions{})
	require.ErrorIs(t, err, driver.ErrHandle, "what the driver says counts")
}

// Close waits for queued work that uses the memory.
func TestCloseWaitsForWork(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	for name, make := range map[string]func() (*cuda.Memory, error){
		"virtual": func() (*cuda.Memory, error) { return d.AllocMemory(1000) },
		"legacy":  func() (*cuda.Memory, error) { return d.AllocLegacy(1000) },
	} {
		m, err := make()
		require.NoError(t, err)
		require.NoError(t, s.Fill8(m, 0, 1000, 1))
		require.NoError(t, m.Close())
		require.NoError(t, s.Synchronize(), name)
	}
}

// The garbage collector releases objects without Close. The context is released with the last one.
func TestForgottenObjects(t *testing.T) {
	fake := startFake(t)
	before := fake.Live()
	forget := func() {
		d, err := cuda.Open(0)
		require.NoError(t, err)
		m, err := d.AllocMemory(10)
		require.NoError(t, err)
		s, err := d.NewStream(cuda.StreamOptions{})
		require.NoError(t, err)
		require.NoError(t, s.Fill8(m, 0, 10, 1))
		require.NoError(t, d.Close())
	}
	forget()
	require.NotEqual(t, before, fake.Live())
	collect(t, func() bool { return reflect.DeepEqual(before, fake.Live()) })
}
