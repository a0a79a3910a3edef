//go:build linux && (amd64 || arm64) && !nocuda

package nvml_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml/nvmltest"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

func open(t *testing.T, o nvmltest.Options) (*nvmltest.Fake, *nvml.Session, []nvml.Device) {
	t.Helper()
	f := nvmltest.Start(t, o)
	s, err := nvml.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	list, err := s.Devices()
	require.NoError(t, err)
	return f, s, list
}

func TestDevices(t *testing.T) {
	_, s, list := open(t, nvmltest.Options{Devices: 2, Memory: 8 << 30, UUIDs: []string{"GPU-a", "GPU-b"}, Processes: []nvmltest.Process{{Device: 1, PID: 7, Bytes: 1 << 30}}})
	require.Len(t, list, 2)
	version, err := s.DriverVersion()
	require.NoError(t, err)
	require.Equal(t, "580.65.06", version)
	major, minor, err := s.CUDAVersion()
	require.NoError(t, err)
	require.Equal(t, [2]int{13, 0}, [2]int{major, minor})

	d := list[1]
	status, err := d.Status()
	require.NoError(t, err)
	require.Equal(t, 1, status.Index)
	require.Equal(t, "GPU-b", status.UUID)
	require.Equal(t, "Fake GPU", status.Name)
	require.Equal(t, nvml.MemoryUse{Total: 8 << 30, Used: 1 << 30, Free: 7<<30 - 1<<20, Reserved: 1 << 20}, *status.Memory)
	require.Equal(t, nvml.Busy{GPU: 73, Memory: 12}, *status.Busy)
	require.Equal(t, 41, *status.Temperature)
	require.Equal(t, 312.5, *status.Watts)
	require.Equal(t, []nvml.Process{{PID: 7, Uses: nvml.UsesCompute, Bytes: 1 << 30, GPUInstance: -1, ComputeInstance: -1}}, status.Processes)
	require.Equal(t, nvml.MIG{}, status.MIG)
	limit, err := d.PowerLimit()
	require.NoError(t, err)
	require.Equal(t, 700.0, limit)
	address, err := d.PCIAddress()
	require.NoError(t, err)
	require.Equal(t, "00000000:3c:00.0", address)

	same, err := s.DeviceByUUID("GPU-b")
	require.NoError(t, err)
	require.Equal(t, d, same)
	_, err = s.DeviceByUUID("GPU-none")
	require.ErrorIs(t, err, nvml.Error{Result: nvml.ERROR_NOT_FOUND})
}

// A process in several lists appears once, an unknown size is -1, and more processes than the first array holds are listed.
func TestProcesses(t *testing.T) {
	const compute, graphics, mps = nvml.UsesCompute, nvml.UsesGraphics, nvml.UsesMPS
	f, _, list := open(t, nvmltest.Options{Processes: []nvmltest.Process{
		{PID: 1, Bytes: 10, Uses: compute | graphics}, {PID: 2, Bytes: 30, Uses: mps}, {PID: 3, Bytes: -1}, {PID: 4, Bytes: 20, Uses: graphics},
	}})
	got, err := list[0].Processes()
	require.NoError(t, err)
	require.Equal(t, []nvml.Process{
		{PID: 2, Uses: mps, Bytes: 30, GPUInstance: -1, ComputeInstance: -1},
		{PID: 4, Uses: graphics, Bytes: 20, GPUInstance: -1, ComputeInstance: -1},
		{PID: 1, Uses: compute | graphics, Bytes: 10, GPUInstance: -1, ComputeInstance: -1},
		{PID: 3, Uses: compute, Bytes: -1, GPUInstance: -1, ComputeInstance: -1},
	}, got)
	require.Equal(t, "C+G", got[2].Uses.String())

	var many []nvmltest.Process
	for i := range 200 {
		many = append(many, nvmltest.Process{PID: i + 1, Bytes: int64(i)})
	}
	f.SetProcesses(t, many)
	got, err = list[0].Processes()
	require.NoError(t, err)
	require.Len(t, got, 200)
	require.Equal(t, 200, got[0].PID)
	f.SetProcesses(t, nil)
	got, err = list[0].Processes()
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestNVLinks(t *testing.T) {
	_, _, list := open(t, nvmltest.Options{Devices: 2})
	links, err := list[0].NVLinks()
	require.NoError(t, err)
	require.Equal(t, []nvml.Link{
		{Index: 0, Active: true, Version: 4, Remote: "00000000:3c:00.0"}, {Index: 1, Active: true, Version: 4, Remote: "00000000:3c:00.0"}, {Index: 2, Version: 4},
	}, links)
}

// MIG devices have separate memory and processes, and no sensors.
func TestMIG(t *testing.T) {
	_, s, list := open(t, nvmltest.Options{MIG: true, Memory: 8 << 30, Processes: []nvmltest.Process{{PID: 1, Bytes: 1}, {PID: 2, Bytes: 2}}})
	m, err := list[0].MIG()
	require.NoError(t, err)
	require.True(t, m.Enabled)
	require.True(t, m.Pending)
	require.Len(t, m.Devices, 2)
	part := m.Devices[1]
	uuid, err := part.UUID()
	require.NoError(t, err)
	require.Regexp(t, "^MIG-", uuid)
	same, err := s.DeviceByUUID(uuid)
	require.NoError(t, err)
	require.Equal(t, part, same)
	gi, ci, err := part.MIGIDs()
	require.NoError(t, err)
	require.Equal(t, [2]int{1, 0}, [2]int{gi, ci})
	memory, err := part.Memory()
	require.NoError(t, err)
	require.EqualValues(t, 4<<30, memory.Total)
	processes, err := part.Processes()
	require.NoError(t, err)
	require.Equal(t, []nvml.Process{{PID: 2, Uses: nvml.UsesCompute, Bytes: 2, GPUInstance: 1, ComputeInstance: 0}}, processes)
	_, err = part.Temperature()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	status, err := part.Status()
	require.NoError(t, err)
	require.Nil(t, status.Temperature)
	require.Nil(t, status.Busy)
}

// A value that the user may not read is missing from the status, and other errors are returned.
func TestStatusErrors(t *testing.T) {
	_, _, list := open(t, nvmltest.Options{Fail: map[string]nvml.Result{"nvmlDeviceGetComputeRunningProcesses_v3": nvml.ERROR_NO_PERMISSION}})
	status, err := list[0].Status()
	require.NoError(t, err)
	require.Empty(t, status.Processes)
	_, err = list[0].Processes()
	require.ErrorIs(t, err, nvml.Error{Result: nvml.ERROR_NO_PERMISSION})

	t.Setenv("FAKENVML_FAIL", "nvmlDeviceGetMemoryInfo_v2=15")
	_, err = list[0].Status()
	require.ErrorIs(t, err, nvml.Error{Result: nvml.ERROR_GPU_IS_LOST})
	t.Setenv("FAKENVML_FAIL", "nvmlDeviceGetMigMode=3")
	m, err := list[0].MIG()
	require.NoError(t, err, "a GPU without MIG")
	require.False(t, m.Enabled)
}

// Sessions are counted, and Open reports why NVML is not usable.
func TestSessions(t *testing.T) {
	f := nvmltest.Start(t, nvmltest.Options{Devices: 1})
	require.NotEmpty(t, f.Library)
	a, err := nvml.Open()
	require.NoError(t, err)
	b, err := nvml.Open()
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "the second call has no effect")
	_, err = b.Devices()
	require.NoError(t, err)
	require.NoError(t, b.Close())
	_, err = b.Devices()
	require.ErrorIs(t, err, nvml.Error{Result: nvml.ERROR_UNINITIALIZED})
	t.Setenv("FAKENVML_FAIL", "nvmlInitWithFlags=9")
	_, err = nvml.Open()
	require.EqualError(t, err, "nvml: NVML_ERROR_DRIVER_NOT_LOADED (9): the driver is not loaded")
}

// A session whose end fails can be closed again, and is ended once.
func TestSessionCloseCanBeRepeated(t *testing.T) {
	nvmltest.Start(t, nvmltest.Options{Devices: 1})
	a, err := nvml.Open()
	require.NoError(t, err)
	b, err := nvml.Open()
	require.NoError(t, err)
	t.Setenv("FAKENVML_FAIL", "nvmlShutdown=999")
	require.ErrorIs(t, a.Close(), nvml.Error{Result: nvml.ERROR_UNKNOWN})
	t.Setenv("FAKENVML_FAIL", "")
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	_, err = b.Devices()
	require.NoError(t, err, "the other session is open")
	require.NoError(t, b.Close())
	_, err = b.Devices()
	require.ErrorIs(t, err, nvml.Error{Result: nvml.ERROR_UNINITIALIZED})
}

// child runs one test of this binary in a process with another library.
func child(t *testing.T, test string, env ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+test)
}

// A library of an older driver works with the older forms, and without one every call reports that.
func TestOtherLibraries(t *testing.T) {
	if os.Getenv("NVML_TEST_CHILD") == "" {
		old := nvmltest.Options{Old: true, Devices: 1, Processes: []nvmltest.Process{{PID: 5, Bytes: 9}}}.Env(t)
		child(t, "TestOtherLibraries", append(old, "NVML_TEST_CHILD=old")...)
		child(t, "TestOtherLibraries", "NVML_TEST_CHILD=none", "SHAREDTENSOR_LIBNVIDIA_ML=/does/not/exist")
		return
	}
	s, err := nvml.Open()
	if os.Getenv("NVML_TEST_CHILD") == "none" {
		require.ErrorIs(t, err, nvml.ErrNoLibrary)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		return
	}
	require.NoError(t, err)
	list, err := s.Devices()
	require.NoError(t, err)
	status, err := list[0].Status()
	require.NoError(t, err)
	require.EqualValues(t, 9, status.Memory.Used)
	require.Zero(t, status.Memory.Reserved)
	require.Equal(t, 40, *status.Temperature)
	require.Equal(t, 5, status.Processes[0].PID)
	require.ErrorIs(t, nvml.Available("DeviceGetTemperatureV"), errors.ErrUnsupported)
}

// The driver's real library, in NVML_LIBRARY, has the symbols that its age permits, among them all that the typed layer needs.
// Without the driver's kernel module, it refuses to initialise.
func TestRealLibrary(t *testing.T) {
	library := os.Getenv("NVML_LIBRARY")
	drivertest.Needs(t, "nvml", library != "", "no libnvidia-ml.so.1 in NVML_LIBRARY")
	f, err := elf.Open(library)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	exported := map[string]bool{}
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "nvml") && s.Section != elf.SHN_UNDEF {
			exported[s.Name] = true
		}
	}
	bound, missing := map[string]bool{}, []string{}
	for _, f := range nvml.Functions() {
		bound[f.Symbol] = true
		if !exported[f.Symbol] {
			missing = append(missing, f.Symbol)
		}
	}
	var unbound []string
	for name := range exported {
		if !bound[name] {
			unbound = append(unbound, name)
		}
	}
	t.Logf("%s: %d functions exported, %d of %d bound ones missing, %d not bound: %v", library, len(exported), len(missing), len(bound), len(unbound), unbound)
	require.Greater(t, len(exported), 200)
	for _, name := range needed {
		require.Contains(t, exported, name)
	}
	// Other tests of this process use the stand-in.
	if os.Getenv("NVML_TEST_CHILD") == "" {
		child(t, "TestRealLibrary", "NVML_TEST_CHILD=real", "SHAREDTENSOR_LIBNVIDIA_ML="+library)
		return
	}
	s, err := nvml.Open()
	if err == nil {
		require.NoError(t, s.Close(), "this machine has a driver")
		return
	}
	var code nvml.Error
	require.ErrorAs(t, err, &code)
	require.Contains(t, []nvml.Result{nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_UNKNOWN}, code.Result, fmt.Sprint(err))
	require.NotEmpty(t, nvml.ErrorString(code.Result))
}

// needed are the symbols that the typed layer cannot do without.
var needed = []string{
	"nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
	"nvmlDeviceGetIndex", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage",
	"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
}
