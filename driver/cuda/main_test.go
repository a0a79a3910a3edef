package cuda_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// kindVariable passes the handle kind to the second process.
const kindVariable = "SHAREDTENSOR_TEST_HANDLE_KIND"

func TestMain(m *testing.M) {
	drivertest.Main(m, func() (driver.Device, error) {
		kind := driver.HandleKind(os.Getenv(kindVariable))
		if kind == "" {
			kind = driver.CUDAFD
		}
		return cuda.Open(0, cuda.WithHandleKind(kind), cuda.WithStaging(3, 1<<20))
	})
}

// fakeOptions configure the library of this test process.
var fakeOptions = cudatest.Options{Devices: 3, Memory: 512 << 20, Fabric: true}

func startFake(tb testing.TB) *cudatest.Fake {
	tb.Helper()
	f := cudatest.Start(tb, fakeOptions)
	f.Leaks(tb)
	return f
}

// openDevice returns a device of the stand-in that is closed at the end of the test.
func openDevice(tb testing.TB, ordinal int, opts ...cuda.Option) *cuda.Device {
	tb.Helper()
	startFake(tb)
	d, err := cuda.Open(ordinal, opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, d.Close()) })
	return d
}

func TestConformance(t *testing.T) {
	for _, kind := range []driver.HandleKind{driver.CUDAFD, driver.CUDAIPC, driver.CUDAFabric} {
		t.Run(string(kind), func(t *testing.T) {
			startFake(t)
			open := func(tb testing.TB) driver.Device {
				d, err := cuda.Open(0, cuda.WithHandleKind(kind), cuda.WithStaging(3, 1<<20))
				require.NoError(tb, err)
				return d
			}
			opts := []drivertest.Option{drivertest.PeerEnv(kindVariable + "=" + string(kind))}
			if kind == driver.CUDAIPC {
				opts = append(opts, drivertest.ImportElsewhere())
			}
			drivertest.TestDevice(t, open, opts...)
		})
	}
}
