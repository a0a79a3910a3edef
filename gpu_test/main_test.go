//go:build linux

package gpu_test

import (
	"os"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// kindVariable holds the handle kind for the second process of the conformance suite.
const kindVariable = "GPU_TEST_HANDLE_KIND"

// TestMain runs the tests, or acts as one of the processes that they start.
func TestMain(m *testing.M) {
	if os.Getenv(agentVariable) != "" {
		os.Exit(runAgent())
	}
	drivertest.Main(m, func() (driver.Device, error) {
		return cuda.Open(0, cuda.WithHandleKind(driver.HandleKind(os.Getenv(kindVariable))))
	})
}
