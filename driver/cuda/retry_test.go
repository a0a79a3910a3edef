package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

// The release of an unreachable object ends with each result of the driver: the memory is released, or reported as kept.
func TestReleaseInTheBackgroundEnds(t *testing.T) {
	if child(t, "background") {
		return
	}
	fake := cudatest.Start(t, fakeOptions) // what is kept counts as a leak
	for _, c := range []struct {
		function string
		code     cu.Result
		kept     bool
	}{
		{"cuCtxPushCurrent", cu.ERROR_CONTEXT_IS_DESTROYED, false},
		{"cuCtxPushCurrent", cu.ERROR_INVALID_CONTEXT, false},
		{"cuCtxPushCurrent", cu.ERROR_LAUNCH_FAILED, false},
		{"cuThreadExchangeStreamCaptureMode", cu.ERROR_LAUNCH_FAILED, false},
		{"cuStreamIsCapturing", cu.ERROR_LAUNCH_FAILED, false},
		{"cuEventCreate", cu.ERROR_LAUNCH_FAILED, false},
		{"cuEventRecord", cu.ERROR_CONTEXT_IS_DESTROYED, false},
		{"cuMemFree", cu.ERROR_LAUNCH_FAILED, false},
		{"cuMemFree", cu.ERROR_INVALID_VALUE, false},
		{"", cu.ERROR_UNKNOWN, true},
	} {
		d, err := cuda.Open(0)
		require.NoError(t, err)
		s, err := d.NewStream(cuda.StreamOptions{})
		require.NoError(t, err)
		before := driver.Leaks()
		func() {
			m, err := d.AllocLegacy(1000)
			require.NoError(t, err)
			require.NoError(t, s.Fill8(m, 0, 1000, 1))
		}()
		fake.FailEvery(c.function, c.code)
		collectInto(t, func() bool {
			now := driver.Leaks()
			return now.Released+now.Kept == before.Released+before.Kept+1
		})
		fake.FailNone()
		require.Equal(t, c.kept, driver.Leaks().Kept > before.Kept, "%s fails with %v", c.function, c.code)
		eventually(t, func() bool { return d.Stats() == cuda.Stats{} }) // the leak is reported first
		require.NoError(t, s.Close())
		require.NoError(t, d.Close())
	}
}

// A release that fails for a while is repeated until it succeeds.
func TestReleaseInTheBackgroundIsRepeated(t *testing.T) {
	fake := startFake(t)
	d := openDevice(t, 0)
	before := driver.Leaks()
	func() {
		_, err := d.AllocLegacy(1000)
		require.NoError(t, err)
	}()
	fake.FailEvery("cuMemFree", cu.ERROR_UNKNOWN)
	collectInto(t, func() bool { return d.Stats().Deferred == 1 })
	fake.FailNone()
	eventually(t, func() bool { return d.Stats() == cuda.Stats{} })
	require.Equal(t, before.Released+1, driver.Leaks().Released)
}
