package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// examined parses the output of doctor --json, by name of the check.
func examined(t *testing.T, text string) map[string]struct{ Status, Detail, Advice string } {
	t.Helper()
	var list []struct{ Check, Status, Detail, Advice string }
	require.NoError(t, json.Unmarshal([]byte(text), &list), text)
	found := map[string]struct{ Status, Detail, Advice string }{}
	for _, f := range list {
		found[f.Check] = struct{ Status, Detail, Advice string }{f.Status, f.Detail, f.Advice}
	}
	return found
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	found := examined(t, p.must("doctor", "--json"))
	for _, check := range []string{"kernel", "sealed memfd", "memory", "descriptors", "share host by memfd", "socket", "publish and attach", "owner"} {
		require.Equal(t, "ok", found[check].Status, "%s: %+v", check, found[check])
	}
	require.Contains(t, found["owner"].Detail, "no owner is running")
	entries, err := os.ReadDir(p.dir)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is left behind")

	owner := p.serve("m=" + p.model("m.safetensors", 1))
	text := p.must("doctor")
	require.Regexp(t, `(?m)^OK +kernel +Linux `, text)
	require.Regexp(t, `(?m)^OK +owner +answers in \S+, up \S+, owns \S+ KiB, 0 B mapped by clients, has 1 model$`, text)
	require.Regexp(t, `(?m)^OK +owner shares host +by memfd$`, text)
	owner.signal(syscall.SIGKILL)
	owner.exit()
	found = examined(t, p.must("doctor", "--json"))
	require.Equal(t, "warn", found["owner"].Status)
	require.Contains(t, found["owner"].Advice, "removes the socket of a dead one")
}

func TestDoctorFails(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o777))
	r := p.run("doctor", "--json")
	require.Equal(t, cli.ExitFailure, r.code)
	require.Regexp(t, `^sharedtensor: 1 of \d+ checks failed\n$`, r.stderr)
	f := examined(t, r.stdout)["publish and attach"]
	require.Equal(t, "fail", f.Status)
	require.Contains(t, f.Detail, "others may write it")
	require.Contains(t, f.Advice, "a directory of your own")
	require.NoError(t, os.Chmod(p.dir, 0o700))
	r = p.run("doctor", "--socket", p.file("no/such/dir/s"), "--json")
	require.Equal(t, cli.ExitFailure, r.code)
	require.Contains(t, examined(t, r.stdout)["publish and attach"].Advice, "make the directory above")

	// A process that listens without answering is reported as a problem.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.file("silent"), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	r = p.run("doctor", "--socket", p.file("silent"), "--timeout", "50ms", "--json")
	require.Equal(t, cli.ExitOK, r.code)
	require.Contains(t, examined(t, r.stdout)["owner"].Detail, "does not answer yet", r.stdout)
}

func TestDoctorLowLimits(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.command()
	c.Path = "/bin/sh"
	c.Args = []string{"sh", "-c", `ulimit -n 64; ulimit -f 100; exec "$@"`, "sh", program, "doctor", "--json"}
	found := examined(t, p.wait(c).stdout)
	require.Equal(t, "warn", found["descriptors"].Status)
	require.Contains(t, found["descriptors"].Advice, "ulimit -n")
	require.Equal(t, "warn", found["file size limit"].Status)
}

func TestFindings(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	require.NoError(t, printFindings(&b, []finding{ok("a", "1"), warn("long one", "do\nthis", "2\x1b"), fail("c", "", "3")}, false))
	require.Equal(t, "OK    a         1\nWARN  long one  2\\x1b\n                -> do; this\nFAIL  c         3\n", b.String())
	require.NoError(t, verdict([]finding{ok("a", ""), warn("b", "", "")}))
	require.EqualError(t, verdict([]finding{ok("a", ""), fail("b", "", "")}), "1 of 2 checks failed")
	require.Equal(t, statusFail, featureFinding(host.Feature{Required: true, Err: errors.New("no")}).Status)
	require.Equal(t, finding{Check: "f", Status: statusWarn, Detail: "1.0 GiB: no: never", Advice: "do"},
		featureFinding(host.Feature{Name: "f", Bytes: 1 << 30, Err: errors.New("no: never"), Advice: "do"}))
	require.Equal(t, finding{Check: "f", Detail: "1.0 GiB available"}, featureFinding(host.Feature{Name: "f", Bytes: 1 << 30, Detail: "available"}))
}

func TestOwnerFindings(t *testing.T) {
	t.Parallel()
	info := endpoint.ServerInfo{Version: "v1.0.0", Ready: true, Devices: []endpoint.DeviceInfo{{UUID: "a", Type: "cpu"}, {UUID: "b", Type: "cuda", Index: 1}, {UUID: "c"}}}
	info.Capabilities.Handles = []endpoint.HandleSupport{
		{Device: "a", Kind: "memfd", Supported: true}, {Device: "b", Kind: "cuda-fd", Reason: "no"}, {Device: "b", Kind: "cuda-ipc", Reason: "never"},
	}
	require.Equal(t, []finding{
		{Check: "owner shares host", Status: statusOK, Detail: "by memfd"},
		{Check: "owner shares cuda:1", Status: statusWarn, Detail: "no kind of handle works: cuda-fd: no; cuda-ipc: never", Advice: "see the checks of this device"},
	}, ownerShares(info))
	require.Equal(t, statusOK, ownerLife("owner", info, 1).Status, "unreleased versions are not compared")
	info.Ready = false
	require.Equal(t, statusWarn, ownerLife("owner", info, 1).Status)
}

// prober is a device that only implements Probe.
type prober struct {
	driver.Device
	support []driver.Support
}

func (p prober) Probe() []driver.Support { return p.support }

func TestProbeFindings(t *testing.T) {
	t.Parallel()
	no := fmt.Errorf("alloc: %w", driver.ErrOutOfMemory)
	mixed := probeFindings("cuda:0", prober{support: []driver.Support{{Kind: driver.CUDAFD}, {Kind: driver.CUDAFabric, Err: no}}})
	require.Equal(t, []status{statusOK, statusWarn}, []status{mixed[0].Status, mixed[1].Status})
	none := probeFindings("cuda:0", prober{support: []driver.Support{{Kind: driver.CUDAFD, Err: no}}})
	require.Equal(t, statusFail, none[0].Status)
	require.Contains(t, none[0].Advice, "free memory")
}

// Device nodes that the driver's library creates do not indicate a GPU.
func TestHasGPU(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]bool{
		"dev/nvidiactl": false, "dev/nvidia-uvm": false, "dev/nvidia0": true, "dev/dxg": true, "proc/driver/nvidia/gpus/0000:01:00.0/information": true,
	} {
		require.Equal(t, want, hasGPU(fstest.MapFS{file: {}}), file)
	}
}
