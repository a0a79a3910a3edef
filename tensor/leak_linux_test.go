package tensor_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// brokenDevice allocates memory that cannot be written.
type brokenDevice struct{ driver.Device }

// Alloc hides direct access and breaks WriteAt.
func (d brokenDevice) Alloc(bytes int64) (driver.Memory, error) {
	mem, err := d.Device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return brokenMemory{mem}, nil
}

type brokenMemory struct{ driver.Memory }

// WriteAt fails.
func (brokenMemory) WriteAt([]byte, int64) (int, error) { return 0, errDisk }

// open returns the number of memfds that this process has open and mapped.
func open(t *testing.T) (files, mappings int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for i := range len(maps) - 7 {
		if string(maps[i:i+7]) == "/memfd:" {
			mappings++
		}
	}
	return len(entries), mappings
}

func TestNothingLeaks(t *testing.T) {
	dev := openHost(t)
	x := counting(t, dev, 64, 64)
	files, mappings := open(t)
	for range 20 {
		_, err := tensor.FromSlice(brokenDevice{dev}, shape{2}, []int8{1, 2})
		require.ErrorIs(t, err, errDisk)
		_, err = x.Copy(brokenDevice{dev})
		require.ErrorIs(t, err, errDisk)
		_, err = tensor.Zeros(dev, tensor.Int8, shape{1 << 61})
		require.Error(t, err)
		_, err = x.Reshape(shape{3})
		require.Error(t, err)
		c, err := x.Copy(nil)
		require.NoError(t, err)
		v, err := c.Transpose(0, 1)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, v.Close())
	}
	filesAfter, mappingsAfter := open(t)
	require.Equal(t, files, filesAfter)
	require.Equal(t, mappings, mappingsAfter)
	require.EqualValues(t, 1, x.Storage().Refs())
}
