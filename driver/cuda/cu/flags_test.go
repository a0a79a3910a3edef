package cu

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Flags are unsigned, so that bit 31 is not extended into the upper half of a wider parameter.
func TestFlagsAreUnsigned(t *testing.T) {
	found := 0
	for _, call := range []any{
		CtxCreate, CtxSetFlags, DevicePrimaryCtxSetFlags, StreamCreate, StreamCreateWithPriority, GreenCtxCreate, GreenCtxStreamCreate,
		DevSmResourceSplitByCount, EventCreate, EventRecordWithFlags, StreamWaitEvent, MemAllocManaged, StreamAttachMemAsync, IpcOpenMemHandle,
		MemGetHandleForAddressRange, StreamWaitValue32, StreamWaitValue64, StreamWriteValue32, StreamWriteValue64, GraphInstantiate,
		GraphInstantiateWithFlags, GraphDebugDotPrint, UserObjectCreate, GraphRetainUserObject, GraphicsResourceSetMapFlags,
		OccupancyMaxActiveBlocksPerMultiprocessorWithFlags, OccupancyMaxPotentialBlockSizeWithFlags, StreamUpdateCaptureDependencies,
		GetProcAddress, CtxGetFlags, StreamGetFlags, DevicePrimaryCtxGetState,
	} {
		f := reflect.TypeOf(call)
		for i := range f.NumIn() {
			in := f.In(i)
			if in.Kind() == reflect.Pointer {
				in = in.Elem()
			}
			if !strings.HasSuffix(strings.ToLower(in.Name()), "flags") {
				continue
			}
			found++
			require.Contains(t, []reflect.Kind{reflect.Uint32, reflect.Uint64}, in.Kind(), "%s", in)
		}
	}
	require.GreaterOrEqual(t, found, 31)
	require.EqualValues(t, uint64(1)<<31, GraphInstantiate_flags(1<<31))
	require.EqualValues(t, 1<<31, COREDUMP_LOG_ONLY)
}
