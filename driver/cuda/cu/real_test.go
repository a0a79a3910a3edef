//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The real library that CU_REAL_LIBRARY names has the symbols that its version should have, and answers the calls that
// need no device.
func TestRealLibrary(t *testing.T) {
	path := os.Getenv("CU_REAL_LIBRARY")
	if path == "" {
		t.Skip("no library in CU_REAL_LIBRARY: driver/cuda/testdata/verify downloads one")
	}
	forget()
	t.Cleanup(forget)
	require.NoError(t, Load(path))
	var number int32
	require.Equal(t, SUCCESS, DriverGetVersion(&number))
	version := Version(number)
	require.GreaterOrEqual(t, version, Version(11000))

	found, newer := 0, 0
	for _, f := range Functions() {
		err := Available(f.GoName)
		switch {
		case err == nil:
			found++
		case f.Since > version:
			newer++
		default:
			t.Errorf("%s, since CUDA %v: %v", f.Symbol, f.Since, err)
		}
	}
	t.Logf("%s: CUDA %v, %d functions found, %d need a newer driver", path, version, found, newer)

	var text *byte
	require.Equal(t, SUCCESS, GetErrorName(ERROR_OUT_OF_MEMORY, &text))
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", GoString(text))
	require.Equal(t, SUCCESS, GetErrorString(ERROR_OUT_OF_MEMORY, &text))
	require.Equal(t, "out of memory", GoString(text))
	require.Equal(t, ERROR_INVALID_VALUE, GetErrorName(Result(54321), &text))

	initialised := Init(0)
	require.False(t, initialised.Missing())
	t.Logf("cuInit: %v", initialised)
	if initialised.OK() {
		return // there is a GPU: gpu_test checks the rest
	}
	var n int32
	require.Equal(t, ERROR_NOT_INITIALIZED, DeviceGetCount(&n))
	require.Equal(t, ERROR_NOT_INITIALIZED, Context(1).CtxSynchronize())
	require.Equal(t, ERROR_NOT_INITIALIZED, Context(1).EventQuery(1))
	var p DevicePtr
	require.Equal(t, ERROR_NOT_INITIALIZED, MemAlloc(&p, 1))
	require.Equal(t, ERROR_NOT_INITIALIZED, IpcOpenMemHandle(&p, IpcMemHandle{}, 1))
}
