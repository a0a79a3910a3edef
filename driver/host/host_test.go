package host

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

func TestMain(m *testing.M) {
	runLimited()
	drivertest.Main(m, func() (driver.Device, error) { return Open() })
}

// open returns a device, or skips if host memory cannot be shared.
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

func TestFeatures(t *testing.T) {
	drivertest.Leaks(t)
	dev := open(t)
	defer dev.Close()
	for _, s := range dev.Probe() {
		require.Equal(t, driver.Memfd, s.Kind)
		require.NoError(t, s.Err)
	}
	features := dev.(*Device).Features()
	require.Equal(t, len(Features()), len(features))
	names := map[string]bool{}
	for _, f := range features {
		require.NotEmpty(t, f.Name)
		require.False(t, names[f.Name], "%s is told twice", f.Name)
		names[f.Name] = true
		if f.Err != nil {
			require.NotContains(t, f.Err.Error(), "\n")
			require.False(t, f.Required, "%s: %v, and yet a device opened", f.Name, f.Err)
		}
	}
}
