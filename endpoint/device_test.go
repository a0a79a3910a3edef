package endpoint_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// deviceVariable selects the device of the tests, in this process and in those that they start: host, the default, or
// cuda:N.
const deviceVariable = "ENDPOINT_TEST_DEVICE"

// kindVariable selects the handle kind of a CUDA device, if not the default.
const kindVariable = "ENDPOINT_TEST_KIND"

// openDevice opens that device.
func openDevice() (driver.Device, error) {
	name := os.Getenv(deviceVariable)
	if name == "" {
		name = "host"
	}
	kind, index, err := driver.ParseDevice(name)
	if err != nil {
		return nil, err
	}
	if kind == driver.CUDA {
		if kind := os.Getenv(kindVariable); kind != "" {
			return cuda.Open(index, cuda.WithHandleKind(driver.HandleKind(kind)))
		}
		return cuda.Open(index)
	}
	return host.Open()
}

// onGPU reports whether the device is a real GPU.
func onGPU() bool {
	name := os.Getenv(deviceVariable)
	return name != "" && name != "host" && os.Getenv("SHAREDTENSOR_LIBCUDA") == ""
}

// testDevice is openDevice until the end of a test.
func testDevice(t testing.TB) driver.Device {
	t.Helper()
	dev, err := openDevice()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	return dev
}

// hostOnly skips a test that is specific to the host device.
func hostOnly(t testing.TB, why string) {
	t.Helper()
	if name := os.Getenv(deviceVariable); name != "" && name != "host" {
		t.Skip(why)
	}
}

// allVariable makes TestOnCUDA repeat all tests.
const allVariable = "ENDPOINT_TEST_CUDA_ALL"

// repeated matches the tests that TestOnCUDA repeats: those that export, import, reuse and release memory.
var repeated = regexp.MustCompile(`^Test(CallS|ClientAcquire|ClientKilled|Digests|Follow|Kept|LeakGuard|Pinned|Publi|Ref|Server(Killed|Publish)|Slab|Stream|Version)`)

// TestOnCUDA runs tests of this package again with tensors in the memory of the stand-in for a GPU. .ci/soak repeats all
// tests this way, except the simulation, which always uses host memory. The tests of this process run at the same time.
func TestOnCUDA(t *testing.T) {
	if os.Getenv(deviceVariable) != "" {
		t.Skip("this is the second time")
	}
	if testing.Short() {
		t.Skip("-short")
	}
	const processes = 2
	limit := 2 * time.Minute
	if deadline, ok := t.Deadline(); ok {
		limit = max(limit, time.Until(deadline)-30*time.Second) // so that a hang reports its place
	}
	list, err := exec.Command(os.Args[0], "-test.list=^(Test|Example)").Output()
	require.NoError(t, err)
	names := slices.DeleteFunc(strings.Fields(string(list)), func(name string) bool {
		all := os.Getenv(allVariable) != ""
		return name == "TestSimulation" || name == "TestOnCUDA" || !all && !repeated.MatchString(name)
	})
	require.Greater(t, len(names), 80)
	var started []*exec.Cmd
	for i := range processes {
		var share []string
		for j := i; j < len(names); j += processes {
			share = append(share, names[j])
		}
		cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout="+limit.String(), "-test.run=^("+strings.Join(share, "|")+")$")
		cmd.Env = append(append(os.Environ(), cudatest.Options{Memory: 256 << 20}.Env(t)...), deviceVariable+"=cuda:0")
		out, err := os.Create(filepath.Join(t.TempDir(), "out")) // a pipe would need a goroutine, which other tests count
		require.NoError(t, err)
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(t, cmd.Start())
		started = append(started, cmd)
	}
	t.Parallel()
	var all strings.Builder
	for _, cmd := range started {
		failed := cmd.Wait()
		out, err := os.ReadFile(cmd.Stdout.(*os.File).Name())
		require.NoError(t, err)
		assert.NoError(t, failed, "%s", failures(string(out)))
		all.Write(out)
	}
	require.Contains(t, all.String(), "--- PASS: TestServerKilledClientsReadOn")
}

// failures removes passed tests from a log.
func failures(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "=== ") && !strings.Contains(line, "--- PASS") {
			b.WriteString(line)
		}
	}
	return b.String()
}
