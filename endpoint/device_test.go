package endpoint_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

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

// TestOnCUDA runs all tests of this package again with tensors in the memory of the stand-in for a GPU, except the
// simulation, which always uses host memory. Several processes share the tests: most of them wait, and their counts are
// per process.
func TestOnCUDA(t *testing.T) {
	if os.Getenv(deviceVariable) != "" {
		t.Skip("this is the second time")
	}
	if testing.Short() {
		t.Skip("-short")
	}
	const processes = 3
	limit := 2 * time.Minute
	if deadline, ok := t.Deadline(); ok {
		limit = max(limit, time.Until(deadline)-30*time.Second) // so that a hang reports its place
	}
	names := testNames(t)
	var out [processes]bytes.Buffer
	var errs [processes]error
	var running sync.WaitGroup
	for i := range processes {
		var share []string
		for k := i; k < len(names); k += processes {
			share = append(share, names[k])
		}
		cmd := exec.Command(os.Args[0], "-test.v", "-test.count=1", "-test.timeout="+limit.String(), "-test.run=^("+strings.Join(share, "|")+")$")
		cmd.Env = append(os.Environ(), cudatest.Options{Memory: 256 << 20}.Env(t)...)
		cmd.Env = append(cmd.Env, deviceVariable+"=cuda:0")
		cmd.Stdout, cmd.Stderr = &out[i], &out[i]
		running.Go(func() { errs[i] = cmd.Run() })
	}
	running.Wait()
	var all strings.Builder
	for i := range processes {
		require.NoError(t, errs[i], "%s", failures(out[i].String()))
		all.Write(out[i].Bytes())
	}
	require.Contains(t, all.String(), "--- PASS: TestServerKilledClientsReadOn")
}

// testNames returns the tests and examples of this binary, except the simulation.
func testNames(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command(os.Args[0], "-test.list=.").Output()
	require.NoError(t, err)
	var names []string
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSpace(line)
		if (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example")) && name != "TestSimulation" && name != "TestOnCUDA" {
			names = append(names, name)
		}
	}
	require.Greater(t, len(names), 100)
	return names
}

// failures removes passed tests from a log.
func failures(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "=== ") && !strings.Contains(line, "--- PASS") {
			fmt.Fprint(&b, line)
		}
	}
	return b.String()
}
