package cudatest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// Options configure the stand-in. The zero value is one device with 1 GiB and all features but fabric handles.
type Options struct {
	// Devices is the number of devices; 0 means 1, -1 none.
	Devices int
	// Memory is the size of each device's memory in bytes; 0 means 1 GiB. It is counted per process.
	Memory int64
	// UUIDs are the UUIDs of the devices, for those who want to choose them.
	UUIDs []string
	// MIG makes the devices MIG instances, whose UUID is not that of the GPU.
	MIG bool
	// Visible is CUDA_VISIBLE_DEVICES: which devices in which order. Empty means all.
	Visible string
	// DriverVersion is what cuDriverGetVersion answers; 0 means 13000.
	DriverVersion int
	// Old leaves out the functions that drivers before CUDA 13 do not have.
	Old bool
	// Without are features that the devices lack: vmm, fd, ipc, p2p, pool, rohost (pinning of memory mapped read-only).
	Without []string
	// Fabric makes fabric handles work.
	Fabric bool
	// NoIMEX makes the devices say that fabric handles work while the driver refuses them, as where there is no IMEX
	// channel.
	NoIMEX bool
	// Stub makes the library answer cuInit as the toolkit's stub for linking does.
	Stub bool
	// CountReopen makes a second cuIpcOpenMemHandle of one handle succeed and count, as newer drivers do; otherwise it
	// fails.
	CountReopen bool
	// DelayMicros is how long queued work stays undone while nobody waits for it; 0 means 2000.
	DelayMicros int
}

// Env builds the library and returns the environment variables, as NAME=value, with which a program loads it and finds
// these options. All variables of the library are in the list, so that none of the test's own is inherited.
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
		// An empty CUDA_VISIBLE_DEVICES hides all devices; the list of all is the same as none.
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
