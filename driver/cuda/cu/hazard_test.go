//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"bytes"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/ccall"
)

// hazardCalls is the number of calls of TestHazards. CU_TEST_CALLS sets another one.
const hazardCalls = 20_000

// Calls return the right results while the runtime moves stacks, collects garbage, preempts goroutines with signals and
// takes profiles, with and without a context. Goroutines of different contexts share threads.
func TestHazards(t *testing.T) {
	use(t, "tiny")
	calls := hazardCalls
	if s := os.Getenv("CU_TEST_CALLS"); s != "" {
		var err error
		calls, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	disturb(t)
	f, err := NewCallback(func(depth uintptr) { grow(int(depth)) })
	require.NoError(t, err)

	const callers, perGoroutine = 8, 256
	var wg sync.WaitGroup
	var made atomic.Int64
	wrong := make(chan string, callers)
	for caller := range callers {
		wg.Go(func() {
			// New goroutines have small stacks, which grow at different calls.
			for n := 0; made.Load() < int64(calls) && len(wrong) == 0; n++ {
				done := make(chan string)
				go func() { done <- hazardous(caller, n%61, perGoroutine, HostFn(f)) }()
				if text := <-done; text != "" {
					wrong <- text
					return
				}
				made.Add(perGoroutine)
			}
		})
	}
	wg.Wait()
	close(wrong)
	for text := range wrong {
		t.Error(text)
	}
	t.Logf("%d calls by %s", made.Load(), ccall.Path)
}

// hazardous makes n calls at a stack depth and describes the first wrong result.
//
//go:noinline
func hazardous(caller, depth, n int, callback HostFn) string {
	var pad [16]uint64
	pad[depth%16] = uint64(depth)
	if depth > 0 {
		text := hazardous(caller, depth-1, n, callback)
		if pad[depth%16] != uint64(depth) {
			return "a stack variable was overwritten"
		}
		return text
	}
	ctx := Context(caller + 1)
	for i := range n {
		var out DevicePtr
		var id uint64
		x := int32(i)
		params := [1]unsafe.Pointer{unsafe.Pointer(&x)}
		handle := IpcMemHandle{Reserved: [64]byte{0: byte(i), 63: byte(caller)}}
		var ok bool
		switch i % 8 {
		case 0:
			ok = MemAlloc(&out, uint64(i)) == SUCCESS && out == DevicePtr(i+1000000)
		case 1:
			ok = ctx.MemAlloc(&out, uint64(i)) == SUCCESS && out == DevicePtr(i+1000000)
		case 2:
			ok = ctx.CtxGetId(ctx, &id) == SUCCESS && id == 10*uint64(ctx)+1
		case 3:
			ok = LaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, &params[0], nil) == Result(i+330)
		case 4:
			ok = ctx.LaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, &params[0], nil) == Result(i+330)
		case 5:
			ok = IpcOpenMemHandle(&out, handle, 3) == SUCCESS && out == handleSum(&handle, 3)
		case 6:
			ok = ctx.IpcOpenMemHandle(&out, handle, 3) == SUCCESS && out == handleSum(&handle, 3)
		case 7:
			ok = i%64 != 7 || ctx.LaunchHostFunc(Stream(i), callback, uintptr(caller%4)) == Result(i)
		}
		if !ok {
			return "caller " + strconv.Itoa(caller) + ": wrong result of call " + strconv.Itoa(i)
		}
	}
	return ""
}

// handleSum is what the test library computes of a handle.
func handleSum(h *IpcMemHandle, flags uint64) DevicePtr {
	sum := flags
	for _, b := range h.Reserved {
		sum = sum*31 + uint64(b)
	}
	return DevicePtr(sum)
}

//go:noinline
func grow(depth int) byte {
	var pad [4096]byte
	pad[depth] = 1
	if depth > 0 {
		return grow(depth-1) + pad[depth]
	}
	return pad[0]
}

// disturb collects garbage, profiles and sends the runtime's preemption signal to the process until the end of the test.
func disturb(t *testing.T) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(every time.Duration, work func()) {
		wg.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
					work()
				}
			}
		})
	}
	var garbage []byte
	loop(5*time.Millisecond, func() { garbage = bytes.Repeat([]byte{1}, 1<<16); runtime.GC() })
	loop(200*time.Microsecond, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGURG) })
	loop(time.Millisecond, func() { // uses up its time slice, so that the runtime preempts it
		for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
		}
	})
	var profile bytes.Buffer
	profiling := pprof.StartCPUProfile(&profile) == nil // fails if the tests are profiled
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
		if profiling {
			pprof.StopCPUProfile()
		}
		runtime.KeepAlive(garbage)
	})
}
