package cuda_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

func TestDevices(t *testing.T) {
	startFake(t)
	infos, err := cuda.Devices()
	require.NoError(t, err)
	require.Len(t, infos, 3)
	for i, info := range infos {
		require.Equal(t, i, info.Index)
		require.Equal(t, driver.CUDA, info.Type)
		require.EqualValues(t, 2<<20, info.Granularity)
		d, err := cuda.OpenUUID(info.UUID)
		require.NoError(t, err)
		require.Equal(t, info, d.Info())
		require.NoError(t, d.Close())
		require.NoError(t, d.Close())
	}
	for _, ordinal := range []int{-1, 3, 1 << 40} {
		_, err := cuda.Open(ordinal)
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
	_, err = cuda.OpenUUID(driver.UUID{1})
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = cuda.Open(0, cuda.WithHandleKind(driver.Memfd))
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = cuda.Open(0, cuda.WithStaging(0, 1<<20))
	require.ErrorIs(t, err, driver.ErrInvalid)
	v, err := cuda.DriverVersion()
	require.NoError(t, err)
	require.Equal(t, "13.0", v.String())
}

func TestProperties(t *testing.T) {
	d := openDevice(t, 1)
	p, err := d.Properties()
	require.NoError(t, err)
	require.Equal(t, "Fake GPU 1", p.Name)
	require.Equal(t, d.Info().UUID, p.GPU)
	require.Equal(t, "0000:02:00.0", p.PCIBusID)
	require.Equal(t, 9, p.ComputeMajor)
	require.True(t, p.VirtualMemory && p.FileHandles && p.FabricHandles && p.Pools)
	require.False(t, p.Integrated)
	_, err = d.Attribute(100000)
	require.ErrorIs(t, err, driver.ErrInvalid)

	free, total, err := d.MemoryInfo()
	require.NoError(t, err)
	require.EqualValues(t, fakeOptions.Memory, total)
	m := alloc(t, d, 1)
	after, _, err := d.MemoryInfo()
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, free-after, "rounded up to the granularity")
	require.NoError(t, m.Close())
	_, err = d.AllocMemory(total + 1)
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	var e *cuda.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "cuMemCreate", e.Func)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", e.Name())
}

func TestErrorClasses(t *testing.T) {
	for code, want := range map[cu.Result]error{
		cu.ERROR_OUT_OF_MEMORY:   driver.ErrOutOfMemory,
		cu.ERROR_INVALID_CONTEXT: cuda.ErrContext,
		cu.ERROR_NOT_SUPPORTED:   errors.ErrUnsupported,
		cu.ERROR_ILLEGAL_ADDRESS: cuda.ErrFault,
		cu.ERROR_INVALID_VALUE:   driver.ErrInvalid,

		cu.ERROR_STREAM_CAPTURE_UNSUPPORTED: cuda.ErrCapturing,
	} {
		err := error(&cuda.Error{Func: "cuX", Code: code})
		require.ErrorIs(t, err, want)
		require.ErrorIs(t, err, code.Err())
		require.NotErrorIs(t, err, cuda.ErrPeerGone)
		require.Contains(t, err.Error(), "cuX: "+code.String())
	}
	require.ErrorIs(t, &cuda.Error{Func: "cuIpcOpenMemHandle", Code: cu.ERROR_INVALID_HANDLE}, cuda.ErrPeerGone)
	require.NotErrorIs(t, &cuda.Error{Func: "cuStreamQuery", Code: cu.ERROR_INVALID_HANDLE}, cuda.ErrPeerGone)
}

// These codes mean that the context, and for most of them the process, can no longer use the device.
func TestFaultCodes(t *testing.T) {
	for _, code := range []cu.Result{cu.ERROR_CONTAINED, cu.ERROR_NVLINK_UNCORRECTABLE, cu.ERROR_EXTERNAL_DEVICE, cu.ERROR_TENSOR_MEMORY_LEAK,
		cu.ERROR_MPS_CLIENT_TERMINATED, cu.ERROR_ECC_UNCORRECTABLE, cu.ERROR_LAUNCH_FAILED} {
		require.ErrorIs(t, &cuda.Error{Func: "cuX", Code: code}, cuda.ErrFault)
	}
	require.ErrorIs(t, &cuda.Error{Func: "cuX", Code: cu.ERROR_STUB_LIBRARY}, errors.ErrUnsupported)
}

// The toolkit's stub library, which exists for linking, is reported as a missing driver.
func TestStubLibrary(t *testing.T) {
	if childWith(t, "stub", cudatest.Options{Stub: true}) {
		return
	}
	requireUnsupported(t)
	_, err := cuda.Open(0)
	require.ErrorContains(t, err, "stub")
}

// Devices may report support for fabric handles while the driver does not allow this user to make them.
func TestFabricWithoutChannel(t *testing.T) {
	if childWith(t, "noimex", cudatest.Options{NoIMEX: true}) {
		return
	}
	d, err := cuda.Open(0)
	require.NoError(t, err)
	p, err := d.Properties()
	require.NoError(t, err)
	require.True(t, p.FabricHandles)
	for _, s := range d.Probe() {
		if s.Kind != driver.CUDAFabric {
			require.NoError(t, s.Err, s.Kind)
			continue
		}
		var unsupported *driver.UnsupportedError
		require.ErrorAs(t, s.Err, &unsupported)
		require.ErrorContains(t, s.Err, "IMEX")
		require.ErrorContains(t, s.Err, "CUDA_ERROR_NOT_PERMITTED (800)")
	}
	_, err = d.CreateAllocation(4<<20, cuda.FabricHandle)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = d.ImportFabric([64]byte{1})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NoError(t, d.Close())
	d, err = cuda.Open(0, cuda.WithHandleKind(driver.CUDAFabric))
	require.NoError(t, err)
	_, err = d.Alloc(10)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NoError(t, d.Close())
}

// Sizes are rounded up to the granularity of the handle kind with which a device is opened.
func TestGranularityByKind(t *testing.T) {
	startFake(t)
	for kind, want := range map[driver.HandleKind]int64{driver.CUDAFD: 2 << 20, driver.CUDAIPC: 2 << 20, driver.CUDAFabric: 4 << 20} {
		d, err := cuda.Open(0, cuda.WithHandleKind(kind))
		require.NoError(t, err)
		require.Equal(t, want, d.Info().Granularity, kind)
		m := alloc(t, d, 5)
		h, err := m.Export()
		require.NoError(t, err)
		if kind != driver.CUDAIPC { // the same process cannot open these
			other, err := cuda.Open(0)
			require.NoError(t, err)
			in, err := other.Import(h, driver.ImportOptions{})
			require.NoError(t, err, "on a device that was opened for another kind")
			require.NoError(t, in.Close())
			require.NoError(t, other.Close())
		}
		require.NoError(t, h.Close())
		t.Cleanup(func() { require.NoError(t, d.Close()) })
	}
}

// The same GPU can be opened under another ordinal.
func TestOrdinalsDependOnVisibleDevices(t *testing.T) {
	if childWith(t, "visible", cudatest.Options{Devices: 3, Visible: "2,0"}) {
		return
	}
	infos, err := cuda.Devices()
	require.NoError(t, err)
	require.Len(t, infos, 2)
	require.Equal(t, "Fake GPU 2", infos[0].Name)
	d, err := cuda.OpenUUID(infos[1].UUID)
	require.NoError(t, err)
	require.Equal(t, "Fake GPU 0", d.Info().Name)
	require.NoError(t, d.Close())
}

func TestMIG(t *testing.T) {
	if childWith(t, "mig", cudatest.Options{MIG: true}) {
		return
	}
	d, err := cuda.Open(0)
	require.NoError(t, err)
	p, err := d.Properties()
	require.NoError(t, err)
	require.NotEqual(t, p.GPU, p.UUID)
	require.Equal(t, d.Info().UUID, p.UUID)
	_, err = cuda.OpenUUID(p.GPU)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "MIG")
	again, err := cuda.OpenUUID(p.UUID)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.NoError(t, d.Close())
}

// A driver without the functions that CUDA 13 added works.
func TestOldDriver(t *testing.T) {
	if childWith(t, "old", cudatest.Options{Old: true}) {
		return
	}
	d, err := cuda.Open(0)
	require.NoError(t, err)
	defer d.Close()
	v, err := cuda.DriverVersion()
	require.NoError(t, err)
	require.Equal(t, "12.8", v.String())
	require.ErrorIs(t, cu.Available("cuCtxCreate"), errors.ErrUnsupported)
	s := newStream(t, d)
	start, err := d.NewEvent(cuda.EventOptions{Timing: true})
	keep(t, start, err)
	require.NoError(t, start.Record(s))
	require.NoError(t, s.Synchronize())
	took, err := start.Since(start)
	require.NoError(t, err, "the older form of the function")
	require.Zero(t, took)
}

func TestNoLibrary(t *testing.T) {
	if child(t, "none", "SHAREDTENSOR_LIBCUDA=/nonexistent/libcuda.so.1") {
		return
	}
	requireUnsupported(t)
	_, err := cuda.DriverVersion()
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// A library without any of the functions is refused.
func TestLibraryWithoutFunctions(t *testing.T) {
	if os.Getenv(childVariable) == "" {
		cudatest.Build(t)
	}
	if child(t, "libm", "SHAREDTENSOR_LIBCUDA=libm.so.6") {
		return
	}
	requireUnsupported(t)
}

func TestNoDevice(t *testing.T) {
	if childWith(t, "nodevice", cudatest.Options{Devices: -1}) {
		return
	}
	requireUnsupported(t)
}

func requireUnsupported(t *testing.T) {
	t.Helper()
	_, err := cuda.Devices()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = cuda.Open(0)
	var unsupported *driver.UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	require.NotEmpty(t, unsupported.Reason)
	_, err = cuda.OpenUUID(driver.UUID{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestProbe(t *testing.T) {
	d := openDevice(t, 0)
	for _, s := range d.Probe() {
		require.NoError(t, s.Err, s.Kind)
	}
}

// A device that lacks a feature is reported with the reason.
func TestDeviceWithoutFeature(t *testing.T) {
	for feature, broken := range map[string][]driver.HandleKind{
		"vmm": {driver.CUDAFD, driver.CUDAFabric},
		"fd":  {driver.CUDAFD, driver.CUDAFabric},
		"ipc": {driver.CUDAIPC, driver.CUDAFabric},
	} {
		t.Run(feature, func(t *testing.T) {
			if childWith(t, feature, cudatest.Options{Without: []string{feature}}) {
				return
			}
			d, err := cuda.Open(0)
			require.NoError(t, err)
			for _, s := range d.Probe() {
				if contains(broken, s.Kind) {
					require.ErrorIs(t, s.Err, errors.ErrUnsupported, s.Kind)
				} else {
					require.NoError(t, s.Err, s.Kind)
				}
			}
			_, err = d.Alloc(10)
			if feature == "ipc" {
				require.NoError(t, err)
			} else {
				var unsupported *driver.UnsupportedError
				require.ErrorAs(t, err, &unsupported)
			}
		})
	}
}

func contains(kinds []driver.HandleKind, k driver.HandleKind) bool {
	for _, other := range kinds {
		if other == k {
			return true
		}
	}
	return false
}

func TestPeerAccess(t *testing.T) {
	d, other := openDevice(t, 0), openDevice(t, 1)
	can, err := d.CanAccess(other)
	require.NoError(t, err)
	require.True(t, can)
	mod := loadKernels(t, d)
	s := newStream(t, d)
	far, err := other.AllocLegacy(4096)
	keep(t, far, err)
	require.NoError(t, d.EnablePeer(other))
	require.NoError(t, d.EnablePeer(other), "a second time")
	cfg := cuda.LaunchConfig{Block: cuda.Dim3{X: 4}, Stream: s}
	require.NoError(t, function(t, mod, "fill").Launch(cfg, far, uint32(0x07070707), 4))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 4)
	_, err = far.ReadAt(got, 12)
	require.NoError(t, err)
	require.Equal(t, []byte{7, 7, 7, 7}, got)
	require.NoError(t, d.DisablePeer(other))
	require.NoError(t, d.DisablePeer(other), "a second time")
	require.Error(t, d.EnablePeer(d))
}
