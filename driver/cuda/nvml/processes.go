package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Uses are the ways in which a process uses a device, as a set of bits.
type Uses uint8

const (
	// UsesCompute means a compute context, such as of CUDA.
	UsesCompute Uses = 1 << iota
	// UsesGraphics means a graphics context, such as of OpenGL or Vulkan.
	UsesGraphics
	// UsesMPS means a client of the multi-process service.
	UsesMPS
)

// String returns the letters that nvidia-smi prints: C, G, C+G, M.
func (u Uses) String() string {
	s := ""
	for i, letter := range []string{"C", "G", "M"} {
		if u&(1<<i) == 0 {
			continue
		}
		if s != "" {
			s += "+"
		}
		s += letter
	}
	return s
}

// Process is a process that holds memory of a device.
type Process struct {
	// PID is the process id in the host's namespace.
	PID int
	// Uses are the kinds of its contexts.
	Uses Uses
	// Bytes is the memory that it holds on the device. It is -1 if the driver does not report it.
	Bytes int64
	// GPUInstance and ComputeInstance are the ids of its MIG device. They are -1 without MIG.
	GPUInstance, ComputeInstance int
}

// listing is a function that lists processes, and its older form with the same records.
type listing struct {
	uses       Uses
	get, older func(d Device, count *uint32, infos *ProcessInfo) Result
}

var listings = []listing{
	{UsesCompute, DeviceGetComputeRunningProcesses, DeviceGetComputeRunningProcesses_v2},
	{UsesGraphics, DeviceGetGraphicsRunningProcesses, DeviceGetGraphicsRunningProcesses_v2},
	{UsesMPS, DeviceGetMPSComputeRunningProcesses, DeviceGetMPSComputeRunningProcesses_v2},
}

// Processes returns the processes that hold memory of the device, sorted by memory, largest first. A process with several kinds
// of contexts, or in several lists of the driver, appears once for each MIG device.
func (d Device) Processes() ([]Process, error) {
	type key struct{ pid, gpuInstance, computeInstance uint32 }
	found := map[key]*Process{}
	for _, l := range listings {
		infos, err := l.list(d)
		if err != nil && l.uses != UsesCompute && errors.Is(err, errors.ErrUnsupported) {
			continue // for example graphics on a device without it
		}
		if err != nil {
			return nil, fmt.Errorf("processes: %w", err)
		}
		for _, info := range infos {
			k := key{info.Pid, info.GpuInstanceId, info.ComputeInstanceId}
			p := found[k]
			if p == nil {
				p = &Process{PID: int(info.Pid), Bytes: -1, GPUInstance: instance(info.GpuInstanceId), ComputeInstance: instance(info.ComputeInstanceId)}
				found[k] = p
			}
			p.Uses |= l.uses
			if info.UsedGpuMemory != notAvailable {
				p.Bytes = max(p.Bytes, int64(min(info.UsedGpuMemory, 1<<62))) // each list has the total of the process
			}
		}
	}
	list := make([]Process, 0, len(found))
	for _, p := range found {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Process) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPUInstance, b.GPUInstance), cmp.Compare(a.ComputeInstance, b.ComputeInstance))
	})
	return list, nil
}

// notAvailable is NVML_VALUE_NOT_AVAILABLE as a number of bytes.
const notAvailable = ^uint64(0)

// instance returns the id of an instance, or -1 for none.
func instance(id uint32) int {
	if id == ^uint32(0) {
		return -1
	}
	return int(id)
}

// list returns the records of one list. Processes may start between two calls, so it retries with a larger array.
func (l listing) list(d Device) ([]ProcessInfo, error) {
	get := l.get
	infos := make([]ProcessInfo, 64)
	for {
		n := uint32(len(infos))
		switch r := get(d, &n, &infos[0]); {
		case r == SUCCESS:
			return infos[:min(int(n), len(infos))], nil
		case r == ERROR_INSUFFICIENT_SIZE && len(infos) < maxItems:
			infos = make([]ProcessInfo, min(max(2*len(infos), int(n)+16), maxItems))
		case r.Missing() && l.older != nil:
			get, l.older = l.older, nil
		default:
			return nil, r.Err()
		}
	}
}
