//go:build linux

package gpu_test

import (
	"os"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// kindVariable tells the second process of the conformance suite by what kind of handle it shares.
const kindVariable = "GPU_TEST_HANDLE_KIND"

// TestMain runs the tests, or is one of the other processes that they start.
func TestMain(m *testing.M) {
	if os.Getenv(agentVariable) != "" {
		os.Exit(runAgent())
	}
	drivertest.Main(m, func() (driver.Device, error) {
		return cuda.Open(0, cuda.WithHandleKind(driver.HandleKind(os.Getenv(kindVariable))))
	})
}
