package cudatest

import (
	"bytes"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Fills of device memory, and copies to it from device memory and pageable memory, are asynchronous to the host: a stream
// that does not synchronise with the default stream overtakes them. Fills of host memory and of managed memory are not.
func TestFunctionsWithoutAStreamAreAsynchronous(t *testing.T) {
	runtime.LockOSThread() // the current context is one of the thread
	defer runtime.UnlockOSThread()
	Start(t, Options{Devices: 2, Memory: 64 << 20})
	require.NoError(t, cu.Init(0).Err())
	var ctx cu.Context
	require.NoError(t, cu.DevicePrimaryCtxRetain(&ctx, 0).Err())
	require.NoError(t, cu.CtxPushCurrent(ctx).Err())
	defer func() {
		require.NoError(t, cu.CtxPopCurrent(nil).Err())
		require.NoError(t, cu.DevicePrimaryCtxRelease(0).Err())
	}()
	const n, tries = 4096, 100
	device := func(value byte) (p cu.DevicePtr) {
		require.NoError(t, cu.MemAlloc(&p, n).Err())
		require.NoError(t, cu.MemsetD8(p, value, n).Err())
		require.NoError(t, cu.CtxSynchronize().Err())
		return p
	}
	var side cu.Stream
	require.NoError(t, cu.StreamCreate(&side, cu.STREAM_NON_BLOCKING).Err())
	var host unsafe.Pointer
	require.NoError(t, cu.MemHostAlloc(&host, n, 0).Err())
	pinned := unsafe.Slice((*byte)(host), n)
	filled := func(value byte) bool { return bytes.Equal(pinned, bytes.Repeat([]byte{value}, n)) }
	src := device(7)
	pageable := bytes.Repeat([]byte{7}, n)
	for name, set := range map[string]func(p cu.DevicePtr) cu.Result{
		"cuMemsetD8":   func(p cu.DevicePtr) cu.Result { return cu.MemsetD8(p, 7, n) },
		"cuMemsetD16":  func(p cu.DevicePtr) cu.Result { return cu.MemsetD16(p, 0x0707, n/2) },
		"cuMemsetD32":  func(p cu.DevicePtr) cu.Result { return cu.MemsetD32(p, 0x07070707, n/4) },
		"cuMemsetD2D8": func(p cu.DevicePtr) cu.Result { return cu.MemsetD2D8(p, 64, 7, 64, n/64) },
		"cuMemcpyDtoD": func(p cu.DevicePtr) cu.Result { return cu.MemcpyDtoD(p, src, n) },
		"cuMemcpyHtoD": func(p cu.DevicePtr) cu.Result { return cu.MemcpyHtoD(p, unsafe.Pointer(&pageable[0]), n) },
		"cuMemcpy HtoD": func(p cu.DevicePtr) cu.Result {
			return cu.Memcpy(p, cu.DevicePtr(uintptr(unsafe.Pointer(&pageable[0]))), n)
		},
	} {
		// The delay of queued work is short, so that a slow test may be overtaken itself.
		overtaken := false
		for try := 0; !overtaken && try < tries; try++ {
			p := device(1)
			require.NoError(t, set(p).Err(), name)
			clear(pageable) // it can be changed when the function has returned
			require.NoError(t, cu.MemcpyDtoHAsync(host, p, n, side).Err())
			require.NoError(t, cu.StreamSynchronize(side).Err())
			overtaken = filled(1)
			require.True(t, overtaken || filled(7), name)
			require.NoError(t, cu.MemcpyDtoH(host, p, n).Err())
			require.True(t, filled(7), "%s: the default stream follows it", name)
			copy(pageable, pinned)
			require.NoError(t, cu.MemFree(p).Err())
		}
		require.True(t, overtaken, "%s: the other stream overtakes it", name)
	}
	// A write of the other stream to memory that is being filled is lost.
	lost := false
	for try := 0; !lost && try < tries; try++ {
		p := device(1)
		require.NoError(t, cu.MemsetD8(p, 0, n).Err())
		require.NoError(t, cu.MemsetD8Async(p, 9, n, side).Err())
		require.NoError(t, cu.StreamSynchronize(side).Err())
		require.NoError(t, cu.CtxSynchronize().Err())
		require.NoError(t, cu.MemcpyDtoH(host, p, n).Err())
		lost = filled(0)
		require.True(t, lost || filled(9))
		require.NoError(t, cu.MemFree(p).Err())
	}
	require.True(t, lost)

	// Memory of the host is filled when the function returns.
	require.NoError(t, cu.MemsetD8(cu.DevicePtr(uintptr(host)), 3, n).Err())
	require.Equal(t, bytes.Repeat([]byte{3}, n), pinned)
	var managed cu.DevicePtr
	require.NoError(t, cu.MemAllocManaged(&managed, n, cu.MEM_ATTACH_GLOBAL).Err())
	require.NoError(t, cu.MemsetD8(managed, 4, n).Err())
	require.NoError(t, cu.MemcpyDtoHAsync(host, managed, n, side).Err())
	require.NoError(t, cu.StreamSynchronize(side).Err())
	require.Equal(t, bytes.Repeat([]byte{4}, n), pinned)
	require.NoError(t, cu.MemFree(managed).Err())
	require.NoError(t, cu.MemFree(src).Err())
	require.NoError(t, cu.MemFreeHost(host).Err())
	require.NoError(t, cu.StreamDestroy(side).Err())
}
