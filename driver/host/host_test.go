package host

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

func TestMain(m *testing.M) {
	drivertest.Main(m, func() (driver.Device, error) { return Open() })
}

// open returns a device, or skips where host memory cannot be shared.
func open(tb testing.TB) driver.Device {
	tb.Helper()
	d, err := Open()
	if errors.Is(err, errors.ErrUnsupported) {
		tb.Skip(err)
	}
	require.NoError(tb, err)
	return d
}

func TestDevice(t *testing.T) { drivertest.TestDevice(t, open) }
