package cuda

import (
	"bytes"
	"errors"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// legacyGranularity is the size of the blocks that cuMemAlloc reserves from the system. It describes allocations of a
// device without virtual memory management.
const legacyGranularity = 2 << 20

// describe returns the properties of a device whose memory is to be shared by handles of a kind.
func describe(ordinal int, h cu.Device, kind driver.HandleKind) (driver.Info, error) {
	info := driver.Info{Type: driver.CUDA, Index: ordinal, Granularity: legacyGranularity}
	var err error
	if info.UUID, err = uuidOf(h); err != nil {
		return info, err
	}
	var name [256]byte
	if err := check("cuDeviceGetName", cu.DeviceGetName(&name[0], int32(len(name)), h)); err != nil {
		return info, err
	}
	info.Name = cString(name[:])
	var total uint64
	if err := check("cuDeviceTotalMem", cu.DeviceTotalMem(&total, h)); err != nil {
		return info, err
	}
	info.TotalBytes = int64(total)
	vmm, err := attribute(h, cu.DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
	if err != nil {
		return info, err
	}
	if vmm != 0 {
		g, err := granularity(h, handleTypes(kind), cu.MEM_ALLOC_GRANULARITY_MINIMUM)
		switch {
		case err == nil:
			info.Granularity = g
		case kind != driver.CUDAFabric || !errors.Is(err, errors.ErrUnsupported):
			return info, err
		} // otherwise there is no fabric, which Alloc reports
	}
	return info, nil
}

// uuidOf returns the UUID of the MIG instance if the device is one, otherwise that of the GPU. Drivers before CUDA 11.4
// report only the GPU's.
func uuidOf(h cu.Device) (driver.UUID, error) {
	var u cu.UUID
	r := cu.DeviceGetUuid(&u, h)
	if r.Missing() {
		r = cu.DeviceGetUuid_v1(&u, h)
	}
	return u.Bytes, check("cuDeviceGetUuid", r)
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return strings.ToValidUTF8(string(b), "?")
}

func attribute(h cu.Device, a cu.Device_attribute) (int, error) {
	var v int32
	err := check("cuDeviceGetAttribute", cu.DeviceGetAttribute(&v, a, h))
	return int(v), err
}

// Attribute returns a numeric attribute of the device. It returns [driver.ErrInvalid] if the driver does not support
// the attribute.
func (d *Device) Attribute(a cu.Device_attribute) (int, error) {
	v, err := attribute(d.handle, a)
	return v, d.opError("attribute", err)
}

// Properties holds commonly used properties of a device. Sizes are in bytes.
type Properties struct {
	// Name is the vendor's name of the device.
	Name string
	// UUID identifies the device, or the MIG instance, across processes.
	UUID driver.UUID
	// GPU is the UUID of the physical GPU. It differs from UUID for a MIG instance.
	GPU driver.UUID
	// PCIBusID is the device's PCI address, as domain:bus:device.function in hexadecimal.
	PCIBusID string
	// ComputeMajor and ComputeMinor are the compute capability.
	ComputeMajor, ComputeMinor int
	// Multiprocessors is the number of streaming multiprocessors.
	Multiprocessors int
	// WarpSize, MaxThreadsPerBlock and MaxThreadsPerMultiprocessor are numbers of threads.
	WarpSize, MaxThreadsPerBlock, MaxThreadsPerMultiprocessor int
	// MaxBlock and MaxGrid are the largest dimensions of a block, in threads, and of a grid, in blocks.
	MaxBlock, MaxGrid Dim3
	// SharedBytesPerBlock is the default limit of a block's shared memory. SharedBytesPerBlockOptIn is the maximum with
	// [Function.SetSharedBytes].
	SharedBytesPerBlock, SharedBytesPerBlockOptIn int
	// L2Bytes is the size of the second-level cache.
	L2Bytes int
	// TotalBytes is the size of the device's memory.
	TotalBytes int64
	// CopyEngines is the number of copies that run concurrently with each other and with kernels.
	CopyEngines int
	// VirtualMemory, FileHandles, FabricHandles, Pools, ManagedMemory and EventIPC report which ways to allocate and
	// share memory the device supports.
	VirtualMemory, FileHandles, FabricHandles, Pools, ManagedMemory, EventIPC bool
	// ConcurrentManaged reports whether the host can access managed memory while kernels of the device run.
	ConcurrentManaged bool
	// CooperativeLaunch, Clusters and Multicast report support for [Cooperative], [ClusterSize] and [NewMulticast].
	CooperativeLaunch, Clusters, Multicast bool
	// Integrated reports whether the device shares the host's memory.
	Integrated bool
}

// Properties queries the driver for all properties.
func (d *Device) Properties() (Properties, error) {
	p := Properties{Name: d.info.Name, UUID: d.info.UUID, TotalBytes: d.info.TotalBytes}
	var gpu cu.UUID
	if err := check("cuDeviceGetUuid", cu.DeviceGetUuid_v1(&gpu, d.handle)); err != nil {
		return p, d.opError("properties", err)
	}
	p.GPU = gpu.Bytes
	var bus [32]byte
	if err := check("cuDeviceGetPCIBusId", cu.DeviceGetPCIBusId(&bus[0], int32(len(bus)), d.handle)); err != nil {
		return p, d.opError("properties", err)
	}
	p.PCIBusID = cString(bus[:])
	var maxBlock, maxGrid [3]int
	numbers := []struct {
		to *int
		a  cu.Device_attribute
	}{
		{&p.ComputeMajor, cu.DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
		{&p.ComputeMinor, cu.DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
		{&p.Multiprocessors, cu.DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
		{&p.WarpSize, cu.DEVICE_ATTRIBUTE_WARP_SIZE},
		{&p.MaxThreadsPerBlock, cu.DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
		{&p.MaxThreadsPerMultiprocessor, cu.DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
		{&maxBlock[0], cu.DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X},
		{&maxBlock[1], cu.DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y},
		{&maxBlock[2], cu.DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z},
		{&maxGrid[0], cu.DEVICE_ATTRIBUTE_MAX_GRID_DIM_X},
		{&maxGrid[1], cu.DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y},
		{&maxGrid[2], cu.DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z},
		{&p.SharedBytesPerBlock, cu.DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
		{&p.SharedBytesPerBlockOptIn, cu.DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
		{&p.L2Bytes, cu.DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
		{&p.CopyEngines, cu.DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
	}
	for _, n := range numbers {
		var err error
		if *n.to, err = attribute(d.handle, n.a); err != nil {
			return p, d.opError("properties", err)
		}
	}
	p.MaxBlock = Dim3{uint32(maxBlock[0]), uint32(maxBlock[1]), uint32(maxBlock[2])}
	p.MaxGrid = Dim3{uint32(maxGrid[0]), uint32(maxGrid[1]), uint32(maxGrid[2])}
	for _, f := range []struct {
		to *bool
		a  cu.Device_attribute
	}{
		{&p.VirtualMemory, cu.DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
		{&p.FileHandles, cu.DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
		{&p.FabricHandles, cu.DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
		{&p.Pools, cu.DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
		{&p.ManagedMemory, cu.DEVICE_ATTRIBUTE_MANAGED_MEMORY},
		{&p.EventIPC, cu.DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED},
		{&p.ConcurrentManaged, cu.DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
		{&p.CooperativeLaunch, cu.DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
		{&p.Clusters, cu.DEVICE_ATTRIBUTE_CLUSTER_LAUNCH},
		{&p.Multicast, cu.DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED},
		{&p.Integrated, cu.DEVICE_ATTRIBUTE_INTEGRATED},
	} {
		var err error
		if *f.to, err = d.has(f.a); err != nil {
			return p, d.opError("properties", err)
		}
	}
	return p, nil
}

// MemoryInfo returns the free and the total bytes of the device's memory. Other processes use the memory too.
func (d *Device) MemoryInfo() (free, total int64, err error) {
	var f, t uint64
	err = d.invoke("cuMemGetInfo", func(c cu.Context) cu.Result { return c.MemGetInfo(&f, &t) })
	return int64(f), int64(t), d.opError("memory info", err)
}
