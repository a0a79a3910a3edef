package endpoint_test

import (
	"os"
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
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
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
	names, err := proctest.Tests()
	require.NoError(t, err)
	names = slices.DeleteFunc(names, func(name string) bool {
		all := os.Getenv(allVariable) != ""
		return name == "TestSimulation" || name == "TestOnCUDA" || strings.HasPrefix(name, "Fuzz") || !all && !repeated.MatchString(name)
	})
	require.Greater(t, len(names), 80)
	var parts []*proctest.Part
	for _, share := range proctest.Shares(names, processes) {
		env := append(cudatest.Options{Memory: 256 << 20}.Env(t), deviceVariable+"=cuda:0")
		p, err := proctest.StartPart(share, []string{"-test.v", "-test.count=1", "-test.timeout=" + limit.String()}, env...)
		require.NoError(t, err)
		parts = append(parts, p)
	}
	t.Parallel()
	var all strings.Builder
	for _, p := range parts {
		out, err := p.Wait()
		assert.NoError(t, err, "%s", failures(string(out)))
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
