package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
)

// OpenDevice opens the device named host or cuda:N. The caller owns it. It returns driver.ErrInvalid for an unknown
// name, and *driver.UnsupportedError if this host or this build does not have the device.
func OpenDevice(name string) (driver.Device, error) {
	kind, index, err := driver.ParseDevice(name)
	if err != nil {
		return nil, err
	}
	switch kind {
	case driver.CPU:
		return OpenHost()
	case driver.CUDA:
		return openCUDA(index)
	}
	return nil, &driver.UnsupportedError{Feature: "device " + name, Requires: "a kind of device that this command knows: cpu or cuda"}
}

// OpenHost is host.Open that returns a nil interface on failure.
func OpenHost() (driver.Device, error) {
	dev, err := host.Open()
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// DeviceFlag adds --device to a command.
func DeviceFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "device", "host", "device that holds the tensors: host or cuda:N")
	_ = c.RegisterFlagCompletionFunc("device", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"host\tshared memory of this host", "cuda:0\tthe first GPU"}, cobra.ShellCompDirectiveNoFileComp
	})
}

// OpenDevicesFor opens the devices that hold a model's storages, for attaching it. storages is the owner's description.
// Host memory is always included. The caller closes the devices with CloseDevices.
func OpenDevicesFor(storages []module.StorageSpec) (_ []driver.Device, err error) {
	var devices []driver.Device
	defer func() {
		if err != nil {
			err = errors.Join(err, CloseDevices(devices))
		}
	}()
	hostDevice, err := OpenHost()
	if err != nil {
		return nil, err
	}
	devices = append(devices, hostDevice)
	seen := map[driver.UUID]bool{hostDevice.Info().UUID: true}
	for _, s := range storages {
		// The client reports storages that no device here can hold.
		if seen[s.Device] || s.DeviceType != driver.CUDA {
			continue
		}
		seen[s.Device] = true
		dev, err := OpenCUDAUUID(s.Device)
		if err != nil {
			return nil, fmt.Errorf("the tensors are on GPU %s: %w", s.Device, err)
		}
		devices = append(devices, dev)
	}
	return devices, nil
}

// CloseDevices closes all devices.
func CloseDevices(devices []driver.Device) error {
	var errs []error
	for _, dev := range devices {
		errs = append(errs, dev.Close())
	}
	return errors.Join(errs...)
}
