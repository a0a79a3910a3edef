package module_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// openHost opens the host's device for the length of the test.
func openHost(tb testing.TB) driver.Device {
	tb.Helper()
	dev, err := host.Open()
	if errors.Is(err, errors.ErrUnsupported) {
		tb.Skip(err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, dev.Close()) })
	return dev
}

// plainDevice is the host device without optional interfaces of its memory, like a device that the processor cannot
// address.
type plainDevice struct {
	driver.Device
	// failWrite, if set, is the error of WriteAt from the write after failAfter on.
	failWrite error
	failAfter int64
	writes    atomic.Int64
	syncs     atomic.Int64
}

func (d *plainDevice) Alloc(bytes int64) (driver.Memory, error) {
	mem, err := d.Device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return &plainMemory{Memory: mem, device: d}, nil
}

// Synchronize implements driver.Device.
func (d *plainDevice) Synchronize() error {
	d.syncs.Add(1)
	return nil
}

type plainMemory struct {
	driver.Memory
	device *plainDevice
}

func (m *plainMemory) Device() driver.Device { return m.device }

func (m *plainMemory) WriteAt(p []byte, off int64) (int, error) {
	if m.device.writes.Add(1) > m.device.failAfter && m.device.failWrite != nil {
		return 0, m.device.failWrite
	}
	return m.Memory.WriteAt(p, off)
}

// set adds a new float32 tensor to a state dict.
func set(t *testing.T, dev driver.Device, sd *module.StateDict, name string, values ...float32) {
	t.Helper()
	x, err := tensor.FromSlice(dev, tensor.Shape{int64(len(values))}, values)
	require.NoError(t, err)
	require.NoError(t, sd.Set(name, x))
}

// tie adds the same tensor under another name.
func tie(t *testing.T, sd *module.StateDict, name, to string) {
	t.Helper()
	x, ok := sd.Get(to)
	require.True(t, ok)
	require.NoError(t, sd.Set(name, x.Alias()))
}

// values reads a float32 tensor of a state dict.
func values(t *testing.T, sd *module.StateDict, name string) []float32 {
	t.Helper()
	x, ok := sd.Get(name)
	require.True(t, ok, name)
	v, err := tensor.Float32s(x)
	require.NoError(t, err)
	return v
}

// testData returns a file outside the repository, or skips the test.
func testData(tb testing.TB, name string) string {
	tb.Helper()
	dir := os.Getenv("SHAREDTENSOR_TESTDATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "data")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		tb.Skipf("no test data (set SHAREDTENSOR_TESTDATA): %v", err)
	}
	return path
}
