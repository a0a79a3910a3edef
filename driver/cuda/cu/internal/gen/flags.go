package main

import (
	"strings"

	"modernc.org/cc/v4"
)

// typedFlags maps functions, without the number of their form, to the enumeration of their flags. The header declares flags as
// integers, which would force callers to convert the constants.
var typedFlags = map[string]string{
	"cuCtxCreate": "CUctx_flags", "cuCtxSetFlags": "CUctx_flags", "cuCtxGetFlags": "CUctx_flags",
	"cuDevicePrimaryCtxSetFlags": "CUctx_flags", "cuDevicePrimaryCtxGetState": "CUctx_flags",
	"cuStreamCreate": "CUstream_flags", "cuStreamCreateWithPriority": "CUstream_flags", "cuStreamGetFlags": "CUstream_flags",
	"cuGreenCtxCreate": "CUgreenCtxCreate_flags", "cuGreenCtxStreamCreate": "CUstream_flags",
	"cuDevSmResourceSplitByCount": "CUdevSmResourceSplitByCount_flags",
	"cuEventCreate":               "CUevent_flags", "cuEventRecordWithFlags": "CUevent_record_flags", "cuStreamWaitEvent": "CUevent_wait_flags",
	"cuMemAllocManaged": "CUmemAttach_flags", "cuStreamAttachMemAsync": "CUmemAttach_flags", "cuIpcOpenMemHandle": "CUipcMem_flags",
	"cuMemGetHandleForAddressRange": "CUmemRangeFlags",
	"cuStreamWaitValue32":           "CUstreamWaitValue_flags", "cuStreamWaitValue64": "CUstreamWaitValue_flags",
	"cuStreamWriteValue32": "CUstreamWriteValue_flags", "cuStreamWriteValue64": "CUstreamWriteValue_flags",
	"cuGraphInstantiate": "CUgraphInstantiate_flags", "cuGraphInstantiateWithFlags": "CUgraphInstantiate_flags",
	"cuGraphDebugDotPrint": "CUgraphDebugDot_flags", "cuUserObjectCreate": "CUuserObject_flags", "cuGraphRetainUserObject": "CUuserObjectRetain_flags",
	"cuGraphicsResourceSetMapFlags":                        "CUgraphicsMapResourceFlags",
	"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": "CUoccupancy_flags", "cuOccupancyMaxPotentialBlockSizeWithFlags": "CUoccupancy_flags",
	"cuStreamUpdateCaptureDependencies": "CUstreamUpdateCaptureDependencies_flags", "cuGetProcAddress": "CUdriverProcAddress_flags",
}

// flagsType returns the Go type of a parameter with flags, or "" for another parameter. wide reports that the flags have 64 bits
// in C.
func (m *model) flagsType(f *function, name string, t cc.Type) (goType string, wide bool) {
	enum := typedFlags[base(f.symbol)]
	if enum == "" || m.target.library != nil || !strings.EqualFold(strings.TrimPrefix(name, "p"), "flags") {
		return "", false
	}
	goType = m.names.types[enum]
	if p, ok := t.(*cc.PointerType); ok {
		return "*" + goType, p.Elem().Size() == 8
	}
	return goType, t.Size() == 8
}
