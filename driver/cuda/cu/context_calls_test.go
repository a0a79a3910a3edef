//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A call in a context sees this context, and the thread's previous context is current after it.
func TestCallInContext(t *testing.T) {
	use(t, "tiny")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	current := func() (c Context) {
		require.Equal(t, SUCCESS, CtxGetCurrent(&c))
		return c
	}
	require.Zero(t, current())
	var id uint64
	require.Equal(t, SUCCESS, Context(7).CtxGetId(7, &id))
	require.EqualValues(t, 71, id)
	require.Zero(t, current())

	require.Equal(t, SUCCESS, CtxPushCurrent(3))
	require.Equal(t, SUCCESS, Context(8).CtxGetId(8, &id))
	require.EqualValues(t, 82, id)
	require.Equal(t, Context(3), current())
	require.Equal(t, SUCCESS, CtxPopCurrent(nil))

	require.Equal(t, ERROR_INVALID_CONTEXT, Context(0).CtxSynchronize(), "a context that cannot be made current")
	require.Zero(t, current())
	require.Equal(t, ERROR_INVALID_CONTEXT, Context(8).CtxGetId(9, &id), "the function's result")
	require.Zero(t, current())
}

// A function that is missing is not called, and neither is a function that needs a context that cannot be set.
func TestMissingFunctionInContext(t *testing.T) {
	use(t, "tiny")
	var unsupported *UnsupportedError
	require.ErrorAs(t, Context(1).CtxGetFlags(nil).Err(), &unsupported)
	require.Equal(t, "cuCtxGetFlags", unsupported.Function)
	require.ErrorAs(t, Context(1).IpcOpenEventHandle(nil, IpcEventHandle{}).Err(), &unsupported)
	require.Equal(t, "cuIpcOpenEventHandle", unsupported.Function)

	for _, f := range []function{fnCtxPushCurrent, fnCtxPopCurrent} {
		use(t, "tiny")
		library.absent[f] = errors.New("undefined symbol")
		require.ErrorAs(t, Context(1).CtxSynchronize().Err(), &unsupported)
		require.Equal(t, table[f].name, unsupported.Function)
		require.Equal(t, SUCCESS, CtxSynchronize())
	}
}

// The goroutine's stack moves when a callback grows it. The call that is in progress does not use the old stack.
func TestStackGrowthInCallback(t *testing.T) {
	use(t, "tiny")
	calls := 0
	f, err := NewCallback(func(depth uintptr) {
		var id uint64
		if !deep(int(depth), 5) || Context(4).CtxGetId(4, &id) != SUCCESS {
			panic("a call within a call failed")
		}
		calls++
	})
	require.NoError(t, err)
	for depth := range uintptr(100) {
		done := make(chan [2]Result)
		go func() {
			done <- [2]Result{LaunchHostFunc(1234, HostFn(f), depth), Context(5).LaunchHostFunc(5678, HostFn(f), depth)}
		}()
		require.Equal(t, [2]Result{1234, 5678}, <-done)
	}
	require.Equal(t, 200, calls)
	var c Context
	require.Equal(t, SUCCESS, CtxGetCurrent(&c))
	require.Zero(t, c)
}
