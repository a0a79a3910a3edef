//go:build linux

package gpu_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// TestConformance runs the suite of package drivertest once for each kind of handle that the device supports.
func TestConformance(t *testing.T) {
	kinds := kindsHere(t, openDevice(t))
	if here().Limits() == "" {
		require.Contains(t, kinds, driver.CUDAFD, "the default kind")
	}
	for _, kind := range []driver.HandleKind{driver.CUDAFD, driver.CUDAIPC, driver.CUDAFabric} {
		t.Run(string(kind), func(t *testing.T) {
			if !slices.Contains(kinds, kind) {
				t.Skipf("the device does not support handles of kind %s", kind) // also with GPU_TEST=require: few devices have fabric handles
			}
			open := func(tb testing.TB) driver.Device {
				dev, err := cuda.Open(0, cuda.WithHandleKind(kind))
				require.NoError(tb, err)
				return dev
			}
			opts := []drivertest.Option{drivertest.PeerEnv(kindVariable + "=" + string(kind))}
			if kind == driver.CUDAIPC {
				opts = append(opts, drivertest.ImportElsewhere())
			}
			drivertest.TestDevice(t, open, opts...)
		})
	}
}

// kindVariable holds the handle kind for the second process of the conformance suite.
const kindVariable = "GPU_TEST_HANDLE_KIND"

// TestMain runs the tests, or acts as one of the processes that they start.
func TestMain(m *testing.M) {
	if os.Getenv(agentVariable) != "" {
		if os.Getenv(ownProcVariable) != "" {
			if err := ownProc(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(runAgent())
	}
	drivertest.Main(m, func() (driver.Device, error) {
		return cuda.Open(0, cuda.WithHandleKind(driver.HandleKind(os.Getenv(kindVariable))))
	})
}
