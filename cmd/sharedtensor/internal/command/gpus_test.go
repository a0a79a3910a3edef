//go:build linux && !nocuda

package command

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
