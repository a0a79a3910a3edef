package cudatest

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

const perThreadVariable = "SHAREDTENSOR_TEST_PER_THREAD"

// With default streams of threads, stream 0 of one thread does not wait for that of another.
func TestPerThreadDefaultStream(t *testing.T) {
	if os.Getenv(perThreadVariable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPerThreadDefaultStream$", "-test.count=1")
		cmd.Env = append(append(os.Environ(), Options{}.Env(t)...), perThreadVariable+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	require.NoError(t, cu.UsePerThreadDefaultStream())
	require.NoError(t, cu.Init(0).Err())
	var ctx cu.Context
	require.NoError(t, cu.DevicePrimaryCtxRetain(&ctx, 0).Err())
	var p cu.DevicePtr
	thread := func(fn func() cu.Result) cu.Result {
		result := make(chan cu.Result)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			if r := cu.CtxSetCurrent(ctx); r != cu.SUCCESS {
				result <- r
				return
			}
			result <- fn()
		}()
		return <-result
	}
	require.NoError(t, thread(func() cu.Result { return cu.MemAlloc(&p, 16) }).Err())
	require.NoError(t, thread(func() cu.Result {
		if r := cu.MemsetD8(p, 0, 16); r != cu.SUCCESS {
			return r
		}
		return cu.StreamSynchronize(0) // a fill is asynchronous, and other threads' streams do not wait for it
	}).Err())
	// The first thread's default stream waits for a value that the second one's writes.
	waiting, written := make(chan cu.Result), make(chan struct{})
	go func() {
		waiting <- thread(func() cu.Result {
			if r := cu.StreamWaitValue32(0, p, 7, cu.STREAM_WAIT_VALUE_EQ); r != cu.SUCCESS {
				return r
			}
			close(written)
			return cu.StreamSynchronize(0)
		})
	}()
	<-written
	require.NoError(t, thread(func() cu.Result {
		if r := cu.StreamWriteValue32(0, p, 7, 0); r != cu.SUCCESS {
			return r
		}
		return cu.StreamSynchronize(0)
	}).Err())
	require.NoError(t, (<-waiting).Err())
	require.NoError(t, thread(func() cu.Result { return cu.MemFree(p) }).Err())
	require.NoError(t, cu.DevicePrimaryCtxRelease(0).Err())
}
