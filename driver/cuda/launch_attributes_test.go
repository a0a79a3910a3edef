package cuda_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// launchinfoPTX is a kernel that writes the dimensions of its launch.
const launchinfoPTX = `
.version 7.8
.target sm_90
.address_size 64

// p[0..2] = grid, p[3..5] = block, p[6..8] = cluster, p[9] = dynamic shared memory in bytes
.visible .entry launchinfo(.param .u64 p)
{
	.reg .b32 r<10>;
	.reg .b64 d;
	ld.param.u64 d, [p];
	mov.u32 r0, %nctaid.x;
	mov.u32 r1, %nctaid.y;
	mov.u32 r2, %nctaid.z;
	mov.u32 r3, %ntid.x;
	mov.u32 r4, %ntid.y;
	mov.u32 r5, %ntid.z;
	mov.u32 r6, %cluster_nctaid.x;
	mov.u32 r7, %cluster_nctaid.y;
	mov.u32 r8, %cluster_nctaid.z;
	mov.u32 r9, %dynamic_smem_size;
	st.global.u32 [d], r0;
	st.global.u32 [d+4], r1;
	st.global.u32 [d+8], r2;
	st.global.u32 [d+12], r3;
	st.global.u32 [d+16], r4;
	st.global.u32 [d+20], r5;
	st.global.u32 [d+24], r6;
	st.global.u32 [d+28], r7;
	st.global.u32 [d+32], r8;
	st.global.u32 [d+36], r9;
	ret;
}
`

func launchinfo(t testing.TB, d *cuda.Device) *cuda.Function {
	mod, err := d.LoadModule([]byte(launchinfoPTX))
	return function(t, keep(t, mod, err), "launchinfo")
}

// words reads 4-byte numbers.
func words(t testing.TB, m *cuda.Memory, n int) []uint32 {
	t.Helper()
	b := make([]byte, 4*n)
	_, err := m.ReadAt(b, 0)
	require.NoError(t, err)
	w := make([]uint32, n)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return w
}

func TestLaunchAttributes(t *testing.T) {
	d := openDevice(t, 0)
	f, s, m := launchinfo(t, d), newStream(t, d), alloc(t, d, 64)
	start, err := d.NewEvent(cuda.EventOptions{})
	keep(t, start, err)
	trigger, err := d.NewEvent(cuda.EventOptions{})
	keep(t, trigger, err)
	cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: 4, Y: 2}, Block: cuda.Dim3{X: 32}, SharedBytes: 1024, Stream: s, Attributes: []cuda.LaunchAttribute{
		cuda.Cooperative(), cuda.ClusterSize(cuda.Dim3{X: 2, Y: 2}), cuda.PreferredClusterSize(cuda.Dim3{X: 4, Y: 2}),
		cuda.PreferClusterScheduling(cuda.ClusterSpread), cuda.LaunchPriority(-3), cuda.OverlapPrevious(),
		cuda.RecordStart(start), cuda.RecordTrigger(trigger, true), cuda.InMemoryDomain(cuda.RemoteDomain), cuda.SharedCarveout(50),
	}}
	require.NoError(t, f.Launch(cfg, m))
	require.NoError(t, start.Synchronize())
	done, err := trigger.Done()
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, []uint32{4, 2, 1, 32, 1, 1, 2, 2, 1, 1024}, words(t, m, 10))
}

func TestLaunchAttributesAreChecked(t *testing.T) {
	d := openDevice(t, 0)
	f, s, m := launchinfo(t, d), newStream(t, d), alloc(t, d, 64)
	timing, err := d.NewEvent(cuda.EventOptions{Timing: true})
	keep(t, timing, err)
	launch := func(grid cuda.Dim3, attrs ...cuda.LaunchAttribute) error {
		return f.Launch(cuda.LaunchConfig{Grid: grid, Block: cuda.Dim3{X: 256}, Stream: s, Attributes: attrs}, m)
	}
	code := func(want cu.Result, err error) {
		t.Helper()
		var e *cuda.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.Code)
	}
	code(cu.ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, launch(cuda.Dim3{X: 65}, cuda.Cooperative())) // 8 blocks on each of 8 multiprocessors
	require.NoError(t, launch(cuda.Dim3{X: 64}, cuda.Cooperative()))
	code(cu.ERROR_INVALID_CLUSTER_SIZE, launch(cuda.Dim3{X: 3}, cuda.ClusterSize(cuda.Dim3{X: 2})))
	code(cu.ERROR_INVALID_CLUSTER_SIZE, launch(cuda.Dim3{X: 16}, cuda.ClusterSize(cuda.Dim3{X: 16})))
	require.NoError(t, f.AllowLargeClusters())
	require.NoError(t, launch(cuda.Dim3{X: 16}, cuda.ClusterSize(cuda.Dim3{X: 16})))
	require.ErrorIs(t, launch(cuda.Dim3{X: 1}, cuda.RecordStart(timing)), driver.ErrInvalid, "an event that measures time")
	require.ErrorIs(t, launch(cuda.Dim3{X: 1}, cuda.RecordStart(nil)), driver.ErrInvalid)
	require.ErrorIs(t, launch(cuda.Dim3{X: 1}, cuda.Cooperative(), cuda.Cooperative()), driver.ErrInvalid, "twice")
	require.ErrorIs(t, launch(cuda.Dim3{X: 1}, cuda.SharedCarveout(101)), driver.ErrInvalid)
	large := cuda.LaunchConfig{SharedBytes: 49153, Stream: s}
	require.ErrorIs(t, f.Launch(large, m), driver.ErrInvalid, "more dynamic shared memory than the limit")
	require.NoError(t, f.SetSharedBytes(49153))
	require.NoError(t, f.Launch(large, m))
	require.NoError(t, s.Synchronize())

	// A closed event is refused before anything is queued.
	e, err := d.NewEvent(cuda.EventOptions{})
	require.NoError(t, err)
	attr := cuda.RecordStart(e)
	require.NoError(t, e.Close())
	require.Error(t, launch(cuda.Dim3{X: 1}, attr))
}

// A driver without cuLaunchKernelEx returns an error that programs recognise.
func TestLaunchAttributesUnsupported(t *testing.T) {
	d := openDevice(t, 0)
	f, m := launchinfo(t, d), alloc(t, d, 64)
	startFake(t).FailFunction("cuLaunchKernelEx", 1, cu.ERROR_NOT_SUPPORTED)
	err := f.Launch(cuda.LaunchConfig{Attributes: []cuda.LaunchAttribute{cuda.Cooperative()}}, m)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "launch attribute")
}
