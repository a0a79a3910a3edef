package cuda

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// kinds are the handle kinds that a CUDA device may support, in order of preference.
var kinds = []driver.HandleKind{driver.CUDAFD, driver.CUDAIPC, driver.CUDAFabric}

// Probe tries each kind of handle. It allocates memory, exports it, and imports it if the driver allows that in the
// same process. A process cannot open its own legacy handles (cuda-ipc), so Probe only exports those.
func (d *Device) Probe() []driver.Support {
	var out []driver.Support
	for _, k := range kinds {
		err := d.Call(func(cu.Context) error { return d.try(k) })
		out = append(out, driver.Support{Kind: k, Err: err})
	}
	return out
}

// supports returns the reason why a kind of handle cannot work, according to the device's attributes.
func (d *Device) supports(kind driver.HandleKind) error {
	if kind == driver.CUDAIPC {
		return nil // the device has no attribute for it
	}
	if has, err := d.has(cu.DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED); err != nil {
		return err
	} else if !has {
		return &driver.UnsupportedError{Feature: fmt.Sprintf("handle kind %s on %s", kind, d.info),
			Requires: "a device and driver with virtual memory management"}
	}
	a, requires := cu.DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
		"a driver that exports descriptors, which those for WSL and Tegra do not (kind cuda-ipc may work there)"
	if kind == driver.CUDAFabric {
		a, requires = cu.DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "a device on an NVLink fabric and a running fabric manager"
	}
	if has, err := d.has(a); err != nil {
		return err
	} else if !has {
		return &driver.UnsupportedError{Feature: fmt.Sprintf("handle kind %s on %s", kind, d.info), Requires: requires}
	}
	return nil
}

// has reports whether the device has a feature. A driver older than the attribute does not have the feature either.
func (d *Device) has(a cu.Device_attribute) (bool, error) {
	v, err := attribute(d.handle, a)
	if errors.Is(err, driver.ErrInvalid) {
		return false, nil
	}
	return v != 0, err
}

// explain adds the reason if making memory failed because the device lacks a feature that it was opened for. It queries
// the device only after a failure.
func (d *Device) explain(err error) error {
	if errors.Is(err, driver.ErrOutOfMemory) {
		return err
	}
	if reason := d.supports(d.options.kind); reason != nil {
		return reason
	}
	return err
}

func (d *Device) try(kind driver.HandleKind) error {
	if err := d.supports(kind); err != nil {
		return err
	}
	m, err := d.makeFor(kind)
	if errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if err != nil {
		return fmt.Errorf("allocate memory for %s: %w", kind, err)
	}
	err = d.tryExport(m, kind)
	return joinErrors([]error{err, m.discard()})
}

// makeFor allocates memory of the minimum size that is shared by handles of a kind.
func (d *Device) makeFor(kind driver.HandleKind) (*Memory, error) {
	types := handleTypes(kind)
	if types == 0 {
		return d.allocLegacy(d.info.Granularity)
	}
	bytes, err := granularity(d.handle, types, cu.MEM_ALLOC_GRANULARITY_MINIMUM)
	if err != nil {
		return nil, err
	}
	return d.allocShared(bytes, types)
}

func (d *Device) tryExport(m *Memory, kind driver.HandleKind) error {
	h, err := m.export()
	switch {
	case kind == driver.CUDAIPC && errors.Is(err, driver.ErrInvalid):
		return &driver.UnsupportedError{Feature: "legacy CUDA IPC", Reason: err.Error(), Requires: "a driver with legacy IPC, which Tegra lacks"}
	case err != nil:
		return fmt.Errorf("export %s: %w", kind, err)
	case kind == driver.CUDAIPC:
		return nil
	}
	h.Device, h.Bytes = d.info.UUID, m.bytes
	back, err := d.importShared(h, driver.ImportOptions{})
	if err != nil {
		return joinErrors([]error{fmt.Errorf("import %s: %w", kind, err), h.Close()})
	}
	return joinErrors([]error{back.discard(), h.Close()})
}
