package cuda

import (
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// LaunchAttribute is an optional property of a launch, for [LaunchConfig]. Functions such as [ClusterSize] make
// attributes. Launches with attributes need CUDA 11.6; each function names a newer version if its attribute needs one.
type LaunchAttribute struct {
	value cu.LaunchAttribute
	event *Event // used by the launch
	err   error
}

func launchAttribute(id cu.LaunchAttributeID) LaunchAttribute {
	return LaunchAttribute{value: cu.LaunchAttribute{Id: id}}
}

// Cooperative makes all blocks of the grid run at the same time, so that they can wait for each other. A grid that does
// not fit on the device is refused with an [*Error] of code [cu.ERROR_COOPERATIVE_LAUNCH_TOO_LARGE]
// ([Function.MaxActiveBlocks] reports how many blocks fit on one multiprocessor).
func Cooperative() LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_COOPERATIVE)
	*a.value.Value.Cooperative() = 1
	return a
}

// ClusterSize groups the blocks of the grid into clusters of the given size in blocks. Blocks of a cluster run at the
// same time and can access each other's shared memory. Each dimension of the grid must be a multiple of that of the
// cluster. A cluster of more than 8 blocks needs [Function.AllowLargeClusters]. It needs CUDA 11.8 and compute
// capability 9.0.
func ClusterSize(size Dim3) LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
	c := a.value.Value.ClusterDim()
	c.X, c.Y, c.Z = size.orOne()
	return a
}

// PreferredClusterSize lets the driver use larger clusters than [ClusterSize] where they fit. It must be a multiple of
// the size of ClusterSize in each dimension. It needs CUDA 12.8 and compute capability 10.0; other devices ignore it.
func PreferredClusterSize(size Dim3) LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION)
	c := a.value.Value.PreferredClusterDim()
	c.X, c.Y, c.Z = size.orOne()
	return a
}

// ClusterScheduling selects how the blocks of a cluster are distributed to multiprocessors.
type ClusterScheduling uint8

// The ways to distribute the blocks of a cluster.
const (
	// ClusterDefault leaves the choice to the driver.
	ClusterDefault = ClusterScheduling(cu.CLUSTER_SCHEDULING_POLICY_DEFAULT)
	// ClusterSpread uses as many multiprocessors as possible.
	ClusterSpread = ClusterScheduling(cu.CLUSTER_SCHEDULING_POLICY_SPREAD)
	// ClusterLoadBalanced lets the hardware balance the load.
	ClusterLoadBalanced = ClusterScheduling(cu.CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING)
)

// PreferClusterScheduling sets how the blocks of clusters are distributed. It needs CUDA 11.8.
func PreferClusterScheduling(policy ClusterScheduling) LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
	*a.value.Value.ClusterSchedulingPolicyPreference() = cu.ClusterSchedulingPolicy(policy)
	return a
}

// LaunchPriority sets the priority of the launch, which otherwise is that of its stream. Lower numbers are served
// first; values outside of [Device.PriorityRange] are clamped. It needs CUDA 11.7.
func LaunchPriority(priority int) LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_PRIORITY)
	*a.value.Value.Priority() = int32(priority)
	return a
}

// OverlapPrevious lets the kernel start before the previous kernel of the stream has ended: when all blocks of that one
// have triggered their dependents or exited. The kernel must wait (griddepcontrol.wait) before it uses results of the
// previous one. It needs CUDA 11.8 and compute capability 9.0.
func OverlapPrevious() LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
	*a.value.Value.ProgrammaticStreamSerializationAllowed() = 1
	return a
}

// RecordStart records the event when all blocks of the kernel have started. The launch borrows the event, which must
// not measure time. It needs CUDA 12.3.
func RecordStart(e *Event) LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
	if e == nil {
		a.err = invalid("no event for the start of a kernel")
		return a
	}
	a.value.Value.LaunchCompletionEvent().Event = e.handle
	a.event = e
	return a
}

// RecordTrigger records the event when all blocks of the kernel have triggered their dependents, or have started if
// atBlockStart is set. The launch borrows the event, which must not measure time. It needs CUDA 11.8.
func RecordTrigger(e *Event, atBlockStart bool) LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
	if e == nil {
		a.err = invalid("no event for the trigger of a kernel")
		return a
	}
	p := a.value.Value.ProgrammaticEvent()
	p.Event = e.handle
	if atBlockStart {
		p.TriggerAtBlockStart = 1
	}
	a.event = e
	return a
}

// MemoryDomain is a domain of memory synchronisation: a fence in one domain does not wait for writes of another.
type MemoryDomain uint8

// The domains.
const (
	// DefaultDomain is for kernels that compute.
	DefaultDomain = MemoryDomain(cu.LAUNCH_MEM_SYNC_DOMAIN_DEFAULT)
	// RemoteDomain is for kernels that write memory of other devices, which is slow to fence.
	RemoteDomain = MemoryDomain(cu.LAUNCH_MEM_SYNC_DOMAIN_REMOTE)
)

// InMemoryDomain selects the domain of memory synchronisation of the launch. It needs CUDA 12.0.
func InMemoryDomain(domain MemoryDomain) LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN)
	*a.value.Value.MemSyncDomain() = cu.LaunchMemSyncDomain(domain)
	return a
}

// SharedCarveout sets how much of the on-chip memory is shared memory rather than cache, in percent of the maximum. It
// is a hint. It needs CUDA 12.3.
func SharedCarveout(percent uint32) LaunchAttribute {
	a := launchAttribute(cu.LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
	if percent > 100 {
		a.err = invalid("%d percent of the on-chip memory as shared memory", percent)
	}
	*a.value.Value.SharedMemCarveout() = percent
	return a
}

// launchOptions returns the attributes of a launch for the driver, and the events that it uses.
func launchOptions(attrs []LaunchAttribute) (values []cu.LaunchAttribute, events []*resource, err error) {
	if len(attrs) == 0 {
		return nil, nil, nil
	}
	values = make([]cu.LaunchAttribute, len(attrs))
	for i, a := range attrs {
		if a.err != nil {
			return nil, nil, a.err
		}
		for _, other := range attrs[:i] {
			if other.value.Id == a.value.Id {
				return nil, nil, invalid("two launch attributes of the kind %d", a.value.Id)
			}
		}
		values[i] = a.value
		if a.event != nil {
			events = append(events, &a.event.resource)
		}
	}
	return values, events, nil
}

// launchError adds what is missing if the driver does not support a launch with these attributes.
func launchError(attrs []cu.LaunchAttribute, err error) error {
	if len(attrs) == 0 || err == nil {
		return err
	}
	if e, ok := err.(*Error); ok && e.Code == cu.ERROR_NOT_SUPPORTED {
		return &driver.UnsupportedError{Feature: "a launch attribute", Reason: err.Error(),
			Requires: "a newer driver or device, see the attribute's documentation"}
	}
	return err
}
