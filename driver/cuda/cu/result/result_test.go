package result_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu/result"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

var options = cudatest.Options{Devices: 2, Memory: 64 << 20}

// Outputs are returned in the order of the C parameters, from functions with and without a context.
func TestResults(t *testing.T) {
	cudatest.Start(t, options).Leaks(t)
	require.Equal(t, cu.SUCCESS, cu.Init(0))
	n, err := result.DeviceGetCount()
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	dev, err := result.DeviceGet(1)
	require.NoError(t, err)
	warp, err := result.DeviceGetAttribute(cu.DEVICE_ATTRIBUTE_WARP_SIZE, dev)
	require.NoError(t, err)
	require.EqualValues(t, 32, warp)

	ctx, err := result.DevicePrimaryCtxRetain(dev)
	require.NoError(t, err)
	defer cu.DevicePrimaryCtxRelease(dev)
	flags, active, err := result.DevicePrimaryCtxGetState(dev)
	require.NoError(t, err)
	require.Equal(t, cu.Ctx_flags(0), flags)
	require.EqualValues(t, 1, active)
	free, total, err := result.MemGetInfo(ctx)
	require.NoError(t, err)
	require.Greater(t, total, uint64(0))
	require.LessOrEqual(t, free, total)

	ptr, err := result.MemAlloc(ctx, 1<<16)
	require.NoError(t, err)
	base, size, err := result.MemGetAddressRange(ctx, ptr+10)
	require.NoError(t, err)
	require.Equal(t, ptr, base)
	require.EqualValues(t, 1<<16, size)
	require.Equal(t, cu.SUCCESS, ctx.MemFree(ptr))

	stream, err := result.StreamCreate(ctx, cu.STREAM_NON_BLOCKING)
	require.NoError(t, err)
	status, err := result.StreamIsCapturing(ctx, stream)
	require.NoError(t, err)
	require.Equal(t, cu.STREAM_CAPTURE_STATUS_NONE, status)
	require.Equal(t, cu.SUCCESS, ctx.StreamDestroy(stream))
}

// A failure names the function and matches the code; a missing function is an UnsupportedError.
func TestFailures(t *testing.T) {
	cudatest.Start(t, options)
	require.Equal(t, cu.SUCCESS, cu.Init(0))
	ctx, err := result.DevicePrimaryCtxRetain(0)
	require.NoError(t, err)
	defer cu.DevicePrimaryCtxRelease(0)
	_, err = result.MemAlloc(ctx, 1<<40)
	var failed *result.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "cuMemAlloc", failed.Function)
	require.ErrorIs(t, err, cu.ERROR_OUT_OF_MEMORY.Err())
	require.ErrorContains(t, err, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)")
	_, err = result.MemAlloc(0, 1)
	require.Error(t, err, "no context")
	_, err = result.SurfObjectCreate(ctx, nil)
	require.ErrorIs(t, err, errors.ErrUnsupported, "the stand-in lacks the function")
}

func Example() {
	if r := cu.Init(0); r.Missing() {
		fmt.Println("no driver")
		return
	}
	dev, err := result.DeviceGet(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, err := result.DevicePrimaryCtxRetain(dev)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cu.DevicePrimaryCtxRelease(dev)
	free, total, err := result.MemGetInfo(ctx)
	fmt.Println(free <= total, err)
}
