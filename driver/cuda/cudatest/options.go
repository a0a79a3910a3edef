package cudatest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// Options configures the stand-in. The zero value is one device with 1 GiB and all features except fabric handles.
type Options struct {
	// Devices is the number of devices; 0 means 1, -1 none.
	Devices int
	// Memory is the size of each device's memory in bytes; 0 means 1 GiB. It is counted per process.
	Memory int64
	// UUIDs sets the UUIDs of the devices. If it is empty, the library chooses them.
	UUIDs []string
	// MIG makes the devices MIG instances, whose UUID differs from that of the GPU.
	MIG bool
	// Visible sets CUDA_VISIBLE_DEVICES, the numbers or UUIDs of the visible devices in their order. Empty means all.
	Visible string
	// DriverVersion is the result of cuDriverGetVersion. 0 means 13000.
	DriverVersion int
	// Old omits the functions that CUDA 13 added.
	Old bool
	// Without lists features that the devices lack: vmm, fd, ipc, p2p, pool, rohost (pinning of memory mapped
	// read-only), managed, concurrent (access of the host to managed memory while kernels run), multicast, green.
	Without []string
	// Fabric enables fabric handles.
	Fabric bool
	// NoIMEX makes the devices report support for fabric handles while the driver refuses them, as on a host without an
	// IMEX channel.
	NoIMEX bool
	// Stub makes cuInit return the result of the toolkit's stub for linking.
	Stub bool
	// CountReopen makes a second cuIpcOpenMemHandle of a handle succeed and count, like newer drivers. Otherwise it
	// fails.
	CountReopen bool
	// DelayMicros is the time in microseconds for which queued work stays unfinished if no caller waits for it. 0 means
	// 2000.
	DelayMicros int
}

// Env builds the library and returns the environment variables, as NAME=value, with which a program loads it with these
// options. The list sets all variables of the library, so the program does not inherit values from the test.
func (o Options) Env(tb testing.TB) []string {
	tb.Helper()
	var defines []string
	if o.Old {
		defines = append(defines, "FAKECUDA_OLD")
	}
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	flag := func(on bool, value string) string {
		if on {
			return value
		}
		return ""
	}
	devices := max(o.Devices, 0)
	if o.Devices == 0 {
		devices = 1
	}
	version := o.DriverVersion
	if version == 0 && o.Old {
		version = 12080
	}
	vars := [][2]string{
		{"SHAREDTENSOR_LIBCUDA", Build(tb, defines...)},
		{"FAKECUDA_DEVICES", strconv.Itoa(devices)},
		{"FAKECUDA_MEMORY", number(o.Memory)},
		{"FAKECUDA_UUIDS", strings.Join(o.UUIDs, ",")},
		{"FAKECUDA_MIG", flag(o.MIG, "1")},
		{"FAKECUDA_DRIVER_VERSION", number(int64(version))},
		{"FAKECUDA_NO", strings.Join(o.Without, ",")},
		{"FAKECUDA_FABRIC", flag(o.Fabric, "1") + flag(o.NoIMEX, "noimex")},
		{"FAKECUDA_STUB", flag(o.Stub, "1")},
		{"FAKECUDA_IPC_REOPEN", flag(o.CountReopen, "count")},
		{"FAKECUDA_DELAY_US", number(int64(o.DelayMicros))},
		{"FAKECUDA_FAIL", ""},
		{"CUDA_VISIBLE_DEVICES", o.Visible},
	}
	var env []string
	for _, v := range vars {
		// An empty CUDA_VISIBLE_DEVICES hides all devices, so all are listed instead.
		if v[0] == "CUDA_VISIBLE_DEVICES" && v[1] == "" {
			v[1] = list(devices)
		}
		env = append(env, fmt.Sprintf("%s=%s", v[0], v[1]))
	}
	return env
}

func list(n int) string {
	var s []string
	for i := range n {
		s = append(s, strconv.Itoa(i))
	}
	return strings.Join(s, ",")
}
