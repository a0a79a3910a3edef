//go:build linux

package gpu_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml"
)

// TestFactProcesses asks NVML for the processes on the GPU while one holds memory.
func TestFactProcesses(t *testing.T) {
	realOnly(t, "NVML needs the real driver")
	dev := openDevice(t)
	session, err := nvml.Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	version, err := session.DriverVersion()
	require.NoError(t, err)
	require.NotEmpty(t, version)
	devices, err := session.Devices()
	require.NoError(t, err)
	require.NotEmpty(t, devices)
	d, err := session.DeviceByUUID("GPU-" + dev.Info().UUID.String())
	require.NoError(t, err)
	require.Contains(t, devices, d)

	const size = 512 << 20
	p := open(t, driver.CUDAFD)
	pid := int(p.must(request{Do: "pid"}).Offset)
	before, err := d.Processes()
	require.NoError(t, err)
	p.must(request{Do: "reserve", Key: "m", Bytes: size})
	after, err := d.Processes()
	require.NoError(t, err)
	t.Logf("process %d; %+v, then %+v", pid, before, after)
	find := func(list []nvml.Process) int {
		return slices.IndexFunc(list, func(q nvml.Process) bool { return q.PID == pid })
	}
	switch i, j := find(before), find(after); {
	case len(after) == 0:
		fact(t, "nvml-processes", "NVML lists no process here")
	case i < 0 || j < 0:
		fact(t, "nvml-processes", "NVML lists %d processes, none with the number that it has here", len(after))
	case after[j].Bytes < 0:
		fact(t, "nvml-processes", "NVML lists the process without its memory")
	default:
		fact(t, "nvml-processes", "NVML lists the process; after it allocates 512 MiB, %d MiB more", (after[j].Bytes-before[i].Bytes)>>20)
	}
}
