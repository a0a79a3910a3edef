package nvml

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"
)

// UUID returns the UUID, such as GPU-..., or MIG-... for a MIG device.
func (d Device) UUID() (string, error) {
	return text(func(b *byte, n uint32) Result { return DeviceGetUUID(d, b, n) })
}

// Name returns the product name.
func (d Device) Name() (string, error) {
	return text(func(b *byte, n uint32) Result { return DeviceGetName(d, b, n) })
}

// Index returns the index of the GPU in the order of PCI addresses. CUDA's ordinals differ if CUDA_VISIBLE_DEVICES is set.
func (d Device) Index() (int, error) {
	var i uint32
	err := DeviceGetIndex(d, &i).Err()
	return int(i), err
}

// PCIAddress returns the PCI address, such as 00000000:3b:00.0.
func (d Device) PCIAddress() (string, error) {
	var p PciInfo
	if err := DeviceGetPciInfo(d, &p).Err(); err != nil {
		return "", err
	}
	return pciAddress(&p), nil
}

func pciAddress(p *PciInfo) string { return strings.ToLower(dl.Text(p.BusId[:])) }

// MemoryUse are the sizes of a device's memory in bytes.
type MemoryUse struct {
	// Total is the size of the memory.
	Total uint64
	// Free is the size that can be allocated.
	Free uint64
	// Used is the size that processes hold. It includes Reserved if the library does not report it separately.
	Used uint64
	// Reserved is the size that the driver and the firmware hold. It is 0 if the library does not report it separately.
	Reserved uint64
}

// Memory returns the sizes of the memory.
func (d Device) Memory() (MemoryUse, error) {
	m := Memory_v2{Version: Memory_v2_VERSION}
	r := DeviceGetMemoryInfo_v2(d, &m)
	if r == SUCCESS {
		return MemoryUse{m.Total, m.Free, m.Used, m.Reserved}, nil
	}
	if err := r.Err(); !errors.Is(err, errors.ErrUnsupported) && r != ERROR_ARGUMENT_VERSION_MISMATCH {
		return MemoryUse{}, err
	}
	var old Memory
	err := DeviceGetMemoryInfo(d, &old).Err()
	return MemoryUse{Total: old.Total, Free: old.Free, Used: old.Used}, err
}

// Busy is the share of the last sample period, between 1/6 s and 1 s, in which a part of the device was in use, in percent.
type Busy struct {
	// GPU is the share in which at least one kernel ran.
	GPU int
	// Memory is the share in which memory was read or written.
	Memory int
}

// Utilization returns how busy the device was. MIG devices do not report it.
func (d Device) Utilization() (Busy, error) {
	var u Utilization
	err := DeviceGetUtilizationRates(d, &u).Err()
	return Busy{int(u.Gpu), int(u.Memory)}, err
}

// Temperature returns the temperature of the GPU in degrees Celsius.
func (d Device) Temperature() (int, error) {
	t := Temperature{Version: Temperature_v1_VERSION, SensorType: TEMPERATURE_GPU}
	r := DeviceGetTemperatureV(d, &t)
	if r == SUCCESS {
		return int(t.Temperature), nil
	}
	if err := r.Err(); !errors.Is(err, errors.ErrUnsupported) && r != ERROR_ARGUMENT_VERSION_MISMATCH {
		return 0, err
	}
	var degrees uint32
	err := DeviceGetTemperature(d, TEMPERATURE_GPU, &degrees).Err()
	return int(int32(degrees)), err
}

// Power returns the power draw in watts, averaged over a second on most devices.
func (d Device) Power() (watts float64, err error) {
	var milliwatts uint32
	err = DeviceGetPowerUsage(d, &milliwatts).Err()
	return float64(milliwatts) / 1000, err
}

// PowerLimit returns the power limit in effect in watts.
func (d Device) PowerLimit() (watts float64, err error) {
	var milliwatts uint32
	err = DeviceGetEnforcedPowerLimit(d, &milliwatts).Err()
	return float64(milliwatts) / 1000, err
}

// Link is an NVLink of a device.
type Link struct {
	// Index is the number of the link.
	Index int
	// Active reports whether the link is up.
	Active bool
	// Version is the NVLink version. It is 0 if it is not reported.
	Version int
	// Remote is the PCI address at the other end. It is empty if the link is down or the address is not reported.
	Remote string
}

// NVLinks returns the links of a device. A device without NVLink has no links.
func (d Device) NVLinks() ([]Link, error) {
	var list []Link
	for i := range uint32(NVLINK_MAX_LINKS) {
		var state EnableState
		r := DeviceGetNvLinkState(d, i, &state)
		if r == ERROR_INVALID_ARGUMENT || r == ERROR_NOT_SUPPORTED {
			continue // the link does not exist or is not usable
		}
		if err := r.Err(); err != nil {
			return list, err
		}
		l := Link{Index: int(i), Active: state == FEATURE_ENABLED}
		var version uint32
		if DeviceGetNvLinkVersion(d, i, &version) == SUCCESS {
			l.Version = int(version)
		}
		var remote PciInfo
		if l.Active && DeviceGetNvLinkRemotePciInfo(d, i, &remote) == SUCCESS {
			l.Remote = pciAddress(&remote)
		}
		list = append(list, l)
	}
	return list, nil
}

// MIG describes the multi-instance mode of a GPU.
type MIG struct {
	// Enabled reports whether the mode is on.
	Enabled bool
	// Pending reports whether the mode is on after the next reset.
	Pending bool
	// Devices are the MIG devices of the GPU. Memory, UUID and Processes work on them.
	Devices []Device
}

// MIG returns the multi-instance mode and the MIG devices of a GPU. A GPU without MIG has the zero value.
func (d Device) MIG() (MIG, error) {
	var current, pending, limit uint32
	if err := DeviceGetMigMode(d, &current, &pending).Err(); err != nil {
		if errors.Is(err, errors.ErrUnsupported) {
			return MIG{}, nil
		}
		return MIG{}, err
	}
	m := MIG{Enabled: current == DEVICE_MIG_ENABLE, Pending: pending == DEVICE_MIG_ENABLE}
	if !m.Enabled {
		return m, nil
	}
	if err := DeviceGetMaxMigDeviceCount(d, &limit).Err(); err != nil {
		return m, err
	}
	for i := range min(limit, maxItems) {
		var device Device
		r := DeviceGetMigDeviceHandleByIndex(d, i, &device)
		if r == ERROR_NOT_FOUND || r == ERROR_INVALID_ARGUMENT {
			continue
		}
		if err := r.Err(); err != nil {
			return m, err
		}
		m.Devices = append(m.Devices, device)
	}
	return m, nil
}

// MIGIDs returns the ids of the GPU instance and the compute instance of a MIG device.
func (d Device) MIGIDs() (gpuInstance, computeInstance int, err error) {
	var gi, ci uint32
	if err := DeviceGetGpuInstanceId(d, &gi).Err(); err != nil {
		return 0, 0, err
	}
	err = DeviceGetComputeInstanceId(d, &ci).Err()
	return int(gi), int(ci), err
}

// Status is the state of a device at one moment. A value that the device does not report is nil.
type Status struct {
	// Time is when the state was read.
	Time time.Time
	// Index is the index of the GPU in the order of PCI addresses.
	Index int
	// UUID is the UUID, such as GPU-....
	UUID string
	// Name is the product name.
	Name string
	// Memory are the sizes of the memory.
	Memory *MemoryUse
	// Busy is how busy the device was.
	Busy *Busy
	// Temperature is the temperature in degrees Celsius.
	Temperature *int
	// Watts is the power draw in watts.
	Watts *float64
	// Processes are the processes that hold memory.
	Processes []Process
	// MIG is the multi-instance mode.
	MIG MIG
	// Err is the reason why the device could not be read. Values that were read before it are set.
	Err error
}

// Status reads the state of a GPU or a MIG device. Unsupported values and values that the user must not read are nil. Other
// errors are returned, each once, with the values that could be read.
func (d Device) Status() (Status, error) {
	s := Status{Time: time.Now()}
	var errs []error
	must := func(err error) {
		if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	var err error
	s.UUID, err = d.UUID()
	must(err)
	s.Name, err = d.Name()
	must(err)
	s.Index, err = d.Index()
	must(err)
	s.Memory, err = optional(d.Memory())
	must(err)
	s.Busy, err = optional(d.Utilization())
	must(err)
	s.Temperature, err = optional(d.Temperature())
	must(err)
	s.Watts, err = optional(d.Power())
	must(err)
	processes, err := optional(d.Processes())
	must(err)
	if processes != nil {
		s.Processes = *processes
	}
	s.MIG, err = d.MIG()
	must(err)
	s.Err = errors.Join(errs...)
	return s, s.Err
}

// optional returns nil for an unsupported or forbidden value.
func optional[T any](value T, err error) (*T, error) {
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, Error{Result: ERROR_NO_PERMISSION}) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &value, nil
}
