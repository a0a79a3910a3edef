package main

import (
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// row is one line of the table.
type row struct {
	name   string
	symbol string
}

// target returns the maximum cost of the trampoline, in calls of cgo.
func (r row) target() float64 {
	if strings.HasPrefix(r.name, "context") {
		return 1.3
	}
	return 1.15
}

// rows are calls with 0 to 11 words, with a record by value, and in a context.
var rows = []row{
	{"0 arguments", "cuCtxSynchronize"},
	{"1", "cuEventQuery"},
	{"2", "cuEventRecord"},
	{"3", "cuStreamWaitEvent"},
	{"4", "cuMemcpyDtoDAsync_v2"},
	{"5", "cuMemsetD2D8_v2"},
	{"6", "cuMemsetD2D8Async"},
	{"7", "cuMulticastBindMem_v2"},
	{"8", "cuLinkAddData_v2"},
	{"9", "cuMemcpyBatchAsync"},
	{"10", "cuLaunchCooperativeKernel"},
	{"11", "cuLaunchKernel"},
	{"64 bytes by value", "cuIpcOpenMemHandle_v2"},
	{"context, 1", "cuEventQuery"},
	{"context, 11", "cuLaunchKernel"},
}

// cuCalls returns the calls by package cu, in the order of rows. Package cu uses the path of the build's tags.
func cuCalls(library string) ([]func() cu.Result, error) {
	if err := cu.Load(library); err != nil {
		return nil, err
	}
	out := new(cu.DevicePtr)
	h := cu.IpcMemHandle{}
	h.Reserved[0] = 5
	c := cu.Context(1)
	return []func() cu.Result{
		func() cu.Result { return cu.CtxSynchronize() },
		func() cu.Result { return cu.EventQuery(1) },
		func() cu.Result { return cu.EventRecord(1, 2) },
		func() cu.Result { return cu.StreamWaitEvent(1, 2, 3) },
		func() cu.Result { return cu.MemcpyDtoDAsync(1, 2, 3, 4) },
		func() cu.Result { return cu.MemsetD2D8(1, 2, 3, 4, 5) },
		func() cu.Result { return cu.MemsetD2D8Async(1, 2, 3, 4, 5, 6) },
		func() cu.Result { return cu.MulticastBindMem_v2(1, 2, 3, 4, 5, 6, 7) },
		func() cu.Result { return cu.LinkAddData(1, 2, nil, 4, nil, 6, nil, nil) },
		func() cu.Result { return cu.MemcpyBatchAsync_v1(nil, nil, nil, 4, nil, nil, 7, nil, 9) },
		func() cu.Result { return cu.LaunchCooperativeKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, nil) },
		func() cu.Result { return cu.LaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, nil, nil) },
		func() cu.Result { return cu.IpcOpenMemHandle(out, h, 1) },
		func() cu.Result { return c.EventQuery(1) },
		func() cu.Result { return c.LaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, nil, nil) },
	}, nil
}
