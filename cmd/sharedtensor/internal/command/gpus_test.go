//go:build linux && !nocuda

package command

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml/nvmltest"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// doctor and top list the processes that hold GPU memory: the owner, its clients, and programs outside sharedtensor.
func TestGPUProcesses(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	env := nvmltest.Options{Devices: 2, Memory: 8 << 30}.Env(t)
	p.env = append(p.env, env...)
	processes := ""
	for _, e := range env {
		if path, ok := strings.CutPrefix(e, "FAKENVML_PROCESSES="); ok {
			processes = path
		}
	}
	p.serve("m=" + p.model("m.safetensors", 1))
	snapshot := func() (s topSnapshot) {
		require.NoError(t, json.Unmarshal([]byte(p.must("top", "--once", "--json", "-i", "50ms")), &s))
		return s
	}
	owner := snapshot().Owner.PID
	require.NoError(t, os.WriteFile(processes, fmt.Appendf(nil, "1 %d %d C\n1 %d -1 G\n", owner, 2<<30, os.Getpid()), 0o600))

	s := snapshot()
	require.Empty(t, s.GPUNote)
	require.Len(t, s.GPUs, 2)
	require.Empty(t, s.GPUs[0].Processes)
	require.EqualValues(t, 2<<30, s.GPUs[1].Used)
	require.Equal(t, gpuProcess{PID: int(owner), Bytes: 2 << 30, Uses: "C", Command: s.GPUs[1].Processes[0].Command, Role: "owner"}, s.GPUs[1].Processes[0])
	require.Equal(t, gpuProcess{PID: os.Getpid(), Bytes: -1, Uses: "G", Command: commandOf(os.Getpid()), Role: "outside"}, s.GPUs[1].Processes[1])
	require.NotEmpty(t, s.GPUs[1].Processes[1].Command)

	text := p.must("top", "--once", "-i", "50ms")
	require.Regexp(t, `(?m)^GPU PROCESS +BYTES +USES +ROLE +COMMAND$`, text)
	require.Regexp(t, `(?m)^gpu 1 +2\.0 GiB +Fake GPU, 8\.0 GiB, 73% busy, 41 °C, 31[23] W$`, text)
	require.Regexp(t, fmt.Sprintf(`(?m)^  %d +unknown +G +outside +\S+`, os.Getpid()), text)

	found := examined(t, p.must("doctor", "--json"))
	require.Equal(t, "0 B of 8.0 GiB used; no process holds memory", found["GPU 0 memory"].Detail)
	require.Contains(t, found["GPU 1 memory"].Detail, fmt.Sprintf("held by 2: pid %d", owner))
	require.Contains(t, found["GPU 1 memory"].Detail, fmt.Sprintf("pid %d %s unknown", os.Getpid(), commandOf(os.Getpid())))
}

// Without NVML, or with an NVML that fails, top works and reports why there are no GPU processes.
func TestGPUProcessesNotRead(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, nvmltest.Options{}.Env(t)...)
	p.env = append(p.env, "FAKENVML_FAIL=nvmlInitWithFlags=9")
	p.serve()
	require.Contains(t, p.must("top", "--once", "-i", "50ms"), "GPU PROCESSES  not read: nvml: NVML_ERROR_DRIVER_NOT_LOADED")
	found := examined(t, p.must("doctor", "--json"))
	require.Equal(t, "warn", found["GPU processes"].Status)
	require.Contains(t, found["GPU processes"].Detail, "the driver is not loaded")
	p.env = append(p.env, "SHAREDTENSOR_LIBNVIDIA_ML="+p.file("none.so"))
	require.NotContains(t, p.must("top", "--once", "-i", "50ms"), "GPU PROCESS", "a host without a GPU")
}

// A lost GPU does not hide the others. Each call may detect the loss.
func TestLostGPU(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]map[string]nvml.Result{
		"handle":    {"nvmlDeviceGetHandleByIndex_v2@1": nvml.ERROR_GPU_IS_LOST},
		"all calls": {"*@1": nvml.ERROR_GPU_IS_LOST},
		"memory":    {"nvmlDeviceGetMemoryInfo_v2@1": nvml.ERROR_GPU_IS_LOST, "nvmlDeviceGetMemoryInfo@1": nvml.ERROR_GPU_IS_LOST},
		"processes": {"nvmlDeviceGetComputeRunningProcesses_v3@1": nvml.ERROR_UNKNOWN},
		"sensor":    {"nvmlDeviceGetPowerUsage@1": nvml.ERROR_TIMEOUT},
		"MIG":       {"nvmlDeviceGetMigMode@1": nvml.ERROR_RESET_REQUIRED},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.env = append(p.env, nvmltest.Options{
				Devices: 3, Memory: 8 << 30, Fail: fails, Processes: []nvmltest.Process{{Device: 0, PID: os.Getpid(), Bytes: 1 << 30}, {Device: 2, PID: os.Getpid(), Bytes: 2 << 30}},
			}.Env(t)...)
			p.serve("m=" + p.model("m.safetensors", 1))
			var s topSnapshot
			require.NoError(t, json.Unmarshal([]byte(p.must("top", "--once", "--json", "-i", "50ms")), &s))
			require.Empty(t, s.GPUNote)
			require.Len(t, s.GPUs, 3)
			for i, g := range s.GPUs {
				require.Equal(t, i, g.Index)
				if i == 1 {
					require.Contains(t, g.Error, "NVML_ERROR_")
					continue
				}
				require.Empty(t, g.Error)
				require.EqualValues(t, (i+2)/2<<30, g.Used)
				require.Len(t, g.Processes, 1)
			}
			text := p.must("top", "--once", "-i", "50ms")
			require.Regexp(t, `(?m)^gpu 0 +1\.0 GiB `, text)
			require.Regexp(t, `(?m)^gpu 1 .*not read: .*NVML_ERROR_`, text)
			require.Regexp(t, `(?m)^gpu 2 +2\.0 GiB `, text)
			found := examined(t, p.must("doctor", "--json"))
			require.Contains(t, found["GPU 0 memory"].Detail, "1.0 GiB of 8.0 GiB used")
			require.Equal(t, "warn", found["GPU 1 memory"].Status)
			require.Contains(t, found["GPU 1 memory"].Detail, "not read: ")
			require.Contains(t, found["GPU 2 memory"].Detail, "2.0 GiB of 8.0 GiB used")
		})
	}
}

// A MIG device is listed under its GPU, with the UUID and the prefix that NVIDIA's programs use.
func TestMIGDevices(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, nvmltest.Options{
		Memory: 8 << 30, MIG: true, Processes: []nvmltest.Process{{PID: os.Getpid(), Bytes: 1 << 30}, {PID: os.Getpid(), Bytes: 2 << 30}},
	}.Env(t)...)
	p.env = append(p.env, cudatest.Options{MIG: true}.Env(t)...)
	p.serve("m=" + p.model("m.safetensors", 1))
	var s topSnapshot
	require.NoError(t, json.Unmarshal([]byte(p.must("top", "--once", "--json", "-i", "50ms")), &s))
	require.Len(t, s.GPUs, 1)
	require.Equal(t, []gpuInstance{
		{UUID: "00000000-0000-0000-0000-000000000000", Total: 4 << 30, Used: 1 << 30}, {UUID: "00000000-0000-0000-0000-000000000001", Total: 4 << 30, Used: 2 << 30},
	}, s.GPUs[0].Instances)
	require.Regexp(t, `(?m)^  MIG-00000000-0000-0000-0000-000000000001 +2\.0 GiB +MIG device, 4\.0 GiB$`, p.must("top", "--once", "-i", "50ms"))
	found := examined(t, p.must("doctor", "--json"))
	require.Equal(t, "MIG device of GPU 0: 1.0 GiB of 4.0 GiB used", found["MIG-00000000-0000-0000-0000-000000000000"].Detail)
	require.Regexp(t, `, MIG-[0-9a-f-]{36} of GPU-[0-9a-f-]{36}$`, found["cuda:0"].Detail)

	p = newPlace(t)
	p.env = append(p.env, cudatest.Options{}.Env(t)...)
	require.Regexp(t, `, GPU-[0-9a-f-]{36}$`, examined(t, p.must("doctor", "--json"))["cuda:0"].Detail)
}

func TestGPURoles(t *testing.T) {
	t.Parallel()
	list := []gpuUse{{Processes: []gpuProcess{{PID: 1}, {PID: 2}, {PID: 3}}}}
	owner := endpoint.ServerInfo{PID: 1, Sessions: []endpoint.SessionInfo{{Session: 4, Process: endpoint.Process{PID: 2}}, {Session: 5, Process: endpoint.Process{PID: 1}, Self: true}}}
	setRoles(list, owner)
	require.Equal(t, []gpuProcess{{PID: 1, Role: "owner"}, {PID: 2, Role: "session 4"}, {PID: 3, Role: "outside"}}, list[0].Processes)
	many := make([]gpuProcess, 10)
	require.Contains(t, processesText(many), "held by 10: pid 0 0 B, ")
	require.Contains(t, processesText(many), " and 2 more")
}
