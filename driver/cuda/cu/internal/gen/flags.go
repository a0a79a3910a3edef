package main

import (
	"fmt"
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

// flagsEnum returns the enumeration of a parameter with flags, or "" for another parameter.
func (m *model) flagsEnum(f *function, name string) string {
	if m.target.library != nil || !strings.EqualFold(strings.TrimPrefix(name, "p"), "flags") {
		return ""
	}
	return typedFlags[base(f.symbol)]
}

// flagsType returns the Go type of a parameter with flags, or "" for another parameter.
func (m *model) flagsType(f *function, name string, t cc.Type) string {
	enum := m.flagsEnum(f, name)
	if enum == "" {
		return ""
	}
	goType := m.names.types[enum]
	if _, ok := t.(*cc.PointerType); ok {
		return "*" + goType
	}
	return goType
}

// flagWidths returns the bytes of each enumeration of flags, by its Go name: those of the parameters that have its type. An
// enumeration that is no parameter has 4 bytes. A type of another width than a parameter would change the value, or the memory
// behind a pointer.
func (m *model) flagWidths() (map[string]int64, error) {
	widths := map[string]int64{}
	for _, e := range m.enums() {
		if name := m.names.enums[enumID(e)]; m.target.library == nil && strings.HasSuffix(strings.ToLower(name), "flags") {
			widths[name] = 0
		}
	}
	for _, f := range m.functions {
		for _, p := range f.decl.params {
			enum := m.flagsEnum(f, p.Name())
			if enum == "" {
				continue
			}
			t := p.Type().Decay()
			if pointer, ok := t.(*cc.PointerType); ok {
				t = pointer.Elem()
			}
			name := m.names.types[enum]
			if have := widths[name]; have != 0 && have != t.Size() {
				return nil, fmt.Errorf("%s: flags %s have %d bytes here and %d elsewhere", f.name, name, t.Size(), have)
			}
			widths[name] = t.Size()
		}
	}
	for name, width := range widths {
		widths[name] = max(width, 4)
	}
	return widths, nil
}
