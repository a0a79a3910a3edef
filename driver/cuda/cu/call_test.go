//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/ccall"
)

func TestResultIsCutTo32Bits(t *testing.T) {
	use(t, "tiny")
	require.Equal(t, ERROR_INVALID_VALUE, MemFree(0))
	require.Equal(t, SUCCESS, MemFree(1))
}

func TestHandleByValue(t *testing.T) {
	use(t, "tiny")
	var h IpcMemHandle
	sum := uint64(3)
	for i := range h.Reserved {
		h.Reserved[i] = byte(200 - 3*i)
		sum = sum*31 + uint64(h.Reserved[i])
	}
	var got DevicePtr
	require.True(t, IpcOpenMemHandle(&got, h, 3).OK())
	require.Equal(t, DevicePtr(sum), got)

	// purego's support for structs is an independent check.
	var open func(out *uint64, h IpcMemHandle, flags uint32) int32
	purego.RegisterFunc(&open, symbol(t, "cuIpcOpenMemHandle_v2"))
	var second uint64
	require.Zero(t, open(&second, h, 3))
	require.Equal(t, sum, second)
}

func TestLaunchArguments(t *testing.T) {
	use(t, "tiny")
	x := int32(7)
	params := [1]unsafe.Pointer{unsafe.Pointer(&x)}
	require.Equal(t, Result(7+2*1+3*2+4*3+5*4+6*5+7*6+8*7+9*8+10*9), LaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, &params[0], nil))
}

// An address of a stack variable that is converted to a number too early is stale once the call grows the stack. New
// goroutines with stacks of many depths make it grow at every point.
func TestStackGrowth(t *testing.T) {
	use(t, "tiny")
	const goroutines = 4000
	var wrong atomic.Int32
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if !deep(i%97, uint64(i)) {
				wrong.Add(1)
			}
		}()
		if i%64 == 0 {
			wg.Wait()
		}
	}
	wg.Wait()
	require.Zero(t, wrong.Load(), "results that went to a stack that was left")
}

//go:noinline
func deep(depth int, n uint64) bool {
	var pad [16]uint64
	pad[depth%16] = n
	if depth > 0 {
		return deep(depth-1, n) && pad[depth%16] == n
	}
	var out DevicePtr
	r := MemAlloc(&out, n)
	return r == SUCCESS && out == DevicePtr(n+1000000)
}

func TestCallsDoNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("with the race detector, sync.Pool drops items at random")
	}
	use(t, "tiny")
	s := new(struct {
		out    DevicePtr
		handle IpcMemHandle
		x      int32
		params [1]unsafe.Pointer
	})
	s.params[0] = unsafe.Pointer(&s.x)
	calls := map[string]func(){
		"no arguments":  func() { CtxSynchronize() },
		"two arguments": func() { MemAlloc(&s.out, 5) },
		"eleven":        func() { LaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, 0, &s.params[0], nil) },
		"success":       func() { _ = CtxSynchronize().Err() },
		"missing":       func() { DeviceGetCount(&s.x) },

		"no arguments in a context": func() { Context(1).CtxSynchronize() },
		"eleven in a context":       func() { Context(1).LaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, 0, &s.params[0], nil) },
		"missing in a context":      func() { Context(1).CtxGetFlags(nil) },
	}
	if runtime.GOARCH == "amd64" || ccall.Path == "trampoline" {
		calls["64 bytes by value"] = func() { IpcOpenMemHandle(&s.out, s.handle, 1) }
		calls["64 bytes by value in a context"] = func() { Context(1).IpcOpenMemHandle(&s.out, s.handle, 1) }
	}
	for name, call := range calls {
		require.Zero(t, testing.AllocsPerRun(1000, call), name)
	}
}

func TestMissingFunction(t *testing.T) {
	use(t, "tiny")
	var n int32
	r := DeviceGetCount(&n)
	require.True(t, r.Missing())
	require.False(t, r.OK())
	require.Equal(t, "cuDeviceGetCount is missing", r.String())

	err := MemGetMemPool(nil, nil, 0).Err()
	var unsupported *UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NotErrorIs(t, err, ErrNoLibrary)
	require.Equal(t, "cuMemGetMemPool", unsupported.Function)
	require.Equal(t, Version(13000), unsupported.Since)
	require.Contains(t, err.Error(), "needs a driver for CUDA 13.0 or newer")
	require.Error(t, unsupported.Err, "what the dynamic linker said")

	// Calls by value, with floating point, and with the most arguments use different code paths.
	for _, r := range []Result{
		IpcOpenEventHandle(nil, IpcEventHandle{}), MemAdvise(0, 0, 0, MemLocation{}), ParamSetf(0, 0, 1),
		TensorMapEncodeIm2colWide(nil, 0, 0, 0, nil, nil, 0, 0, 0, 0, nil, 0, 0, 0, 0, 0),
	} {
		require.ErrorIs(t, r.Err(), errors.ErrUnsupported)
	}

	require.NoError(t, Available("cuMemAlloc"))
	require.NoError(t, Available("MemAlloc"))
	require.ErrorAs(t, Available("cuMemGetMemPool"), &unsupported)
	err = Available("cuNoSuch")
	require.ErrorContains(t, err, `no function "cuNoSuch"`)
	require.NotErrorIs(t, err, errors.ErrUnsupported)
}

func TestNoLibrary(t *testing.T) {
	forget()
	t.Cleanup(forget)
	missing := filepath.Join(t.TempDir(), "libcuda.so.1")
	err := Load(missing)
	require.ErrorIs(t, err, ErrNoLibrary)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, missing)
	require.Empty(t, Path())

	// A call returns the same error, and does not load another library than the requested one.
	err = Init(0).Err()
	var unsupported *UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	require.Equal(t, "cuInit", unsupported.Function)
	require.ErrorIs(t, err, ErrNoLibrary)
	require.ErrorContains(t, err, missing)

	text := filepath.Join(t.TempDir(), "text.so")
	require.NoError(t, os.WriteFile(text, []byte("no ELF"), 0o600))
	require.ErrorIs(t, Load(text), ErrNoLibrary)
}

func TestLibraryFromEnvironment(t *testing.T) {
	if libraries == "" {
		t.Skip("no C compiler")
	}
	forget()
	t.Cleanup(forget)
	path := filepath.Join(libraries, "tiny.so")
	t.Setenv("SHAREDTENSOR_LIBCUDA", path)
	require.Equal(t, SUCCESS, Init(0))
	require.Equal(t, path, Path())
	require.NoError(t, Load(""))
	require.NoError(t, Load(path))
	require.ErrorContains(t, Load("/other/libcuda.so.1"), "already loaded")
}

func TestPerThreadDefaultStream(t *testing.T) {
	use(t, "tiny")
	require.Equal(t, Result(101), MemsetD8(0, 0, 0))
	require.Error(t, UsePerThreadDefaultStream(), "after a call")
	use(t, "tiny")
	require.NoError(t, UsePerThreadDefaultStream())
	require.Equal(t, Result(102), MemsetD8(0, 0, 0))
	require.NoError(t, UsePerThreadDefaultStream())
}

// Function addresses are queried as the header's inline function does it.
func TestProcAddressOfPerThreadStream(t *testing.T) {
	ask := func(flags DriverProcAddress_flags) uintptr {
		var fn uintptr
		require.Equal(t, SUCCESS, GetProcAddress(CString("cuMemcpy"), &fn, 12000, flags, nil))
		return fn
	}
	use(t, "tiny")
	require.EqualValues(t, GET_PROC_ADDRESS_DEFAULT, ask(GET_PROC_ADDRESS_DEFAULT))
	use(t, "tiny")
	require.NoError(t, UsePerThreadDefaultStream())
	for _, flags := range []DriverProcAddress_flags{GET_PROC_ADDRESS_LEGACY_STREAM, GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM} {
		require.EqualValues(t, flags, ask(flags))
	}
	require.EqualValues(t, GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, ask(GET_PROC_ADDRESS_DEFAULT))
}

func TestCallback(t *testing.T) {
	use(t, "tiny")
	var got uintptr
	f, err := NewCallback(func(userData uintptr) { got = userData })
	require.NoError(t, err)
	require.Equal(t, SUCCESS, LaunchHostFunc(0, HostFn(f), 42))
	require.Equal(t, uintptr(42), got)

	_, err = NewCallback("no function")
	require.Error(t, err)
}

// Many goroutines can make the first call of a function at the same time.
func TestConcurrentFirstCalls(t *testing.T) {
	use(t, "tiny")
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var out DevicePtr
			for n := range uint64(200) {
				if r := MemAlloc(&out, n); r != SUCCESS || out != DevicePtr(n+1000000) {
					t.Errorf("goroutine %d: %v, %d", i, r, out)
					return
				}
				if !DeviceGetCount(nil).Missing() {
					t.Error("a missing function was called")
					return
				}
			}
		}()
	}
	wg.Wait()
}
