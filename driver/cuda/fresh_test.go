package cuda_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

// What a method without a stream has written is complete when it returns: work of a stream that does not synchronise with
// the default stream sees it, and is not overwritten by it.
func TestWritesAreCompleteForEveryStream(t *testing.T) {
	const n = 4096
	fresh := func(kind driver.HandleKind) func(t *testing.T, d *cuda.Device) *cuda.Memory {
		return func(t *testing.T, _ *cuda.Device) *cuda.Memory {
			d := openDevice(t, 0, cuda.WithHandleKind(kind))
			return alloc(t, d, n)
		}
	}
	source := bytes.Repeat([]byte{5}, n)
	for name, c := range map[string]struct {
		write func(t *testing.T, d *cuda.Device) *cuda.Memory
		want  byte
	}{
		"new cuda-fd":     {fresh(driver.CUDAFD), 0},
		"new cuda-ipc":    {fresh(driver.CUDAIPC), 0},
		"new cuda-fabric": {fresh(driver.CUDAFabric), 0},
		"buffer": {func(t *testing.T, d *cuda.Device) *cuda.Memory {
			b, err := cuda.NewBuffer[int32](d, n/4)
			return keep(t, b, err).Memory()
		}, 0},
		"fill": {func(t *testing.T, d *cuda.Device) *cuda.Memory {
			m := alloc(t, d, n)
			require.NoError(t, m.Fill(0, n, 5))
			return m
		}, 5},
		"write": {func(t *testing.T, d *cuda.Device) *cuda.Memory {
			m := alloc(t, d, n)
			_, err := m.WriteAt(source, 0)
			require.NoError(t, err)
			return m
		}, 5},
		"copy": {func(t *testing.T, d *cuda.Device) *cuda.Memory {
			m, from := alloc(t, d, n), alloc(t, d, n)
			require.NoError(t, from.Fill(0, n, 5))
			require.NoError(t, m.CopyFrom(0, from, 0, n))
			return m
		}, 5},
		"load": {func(t *testing.T, d *cuda.Device) *cuda.Memory {
			m := alloc(t, d, n)
			require.NoError(t, m.LoadAt(bytes.NewReader(source), 0, 0, n, nil))
			return m
		}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDevice(t, 0)
			s, h := newStream(t, d), host(t, d, n)
			m := c.write(t, d)
			require.NoError(t, s.CopyToHost(h, 0, m, 0, n))
			require.NoError(t, s.Synchronize())
			require.Equal(t, bytes.Repeat([]byte{c.want}, n), h.Data()[:n])
			m = c.write(t, d)
			require.NoError(t, s.Fill8(m, 0, n, 9))
			require.NoError(t, s.Synchronize())
			require.NoError(t, d.Synchronize())
			got := make([]byte, n)
			_, err := m.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, bytes.Repeat([]byte{9}, n), got)
		})
	}
}
