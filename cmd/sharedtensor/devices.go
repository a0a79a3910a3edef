package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// openDevice opens the device that people call name: host or cuda:N. The caller owns it. Errors: driver.ErrInvalid for a name
// that means nothing, *driver.UnsupportedError for a device that this host or this build does not have.
func openDevice(name string) (driver.Device, error) {
	kind, index, err := driver.ParseDevice(name)
	if err != nil {
		return nil, err
	}
	switch kind {
	case driver.CPU:
		return openHost()
	case driver.CUDA:
		return openCUDA(index)
	}
	return nil, &driver.UnsupportedError{Feature: "device " + name}
}

// openHost is host.Open with an interface that is nil on failure.
func openHost() (driver.Device, error) {
	dev, err := host.Open()
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// deviceFlag adds --device to a command and returns where it is kept.
func deviceFlag(c *cobra.Command) *string {
	name := c.Flags().String("device", "host", "device that holds the tensors: host or cuda:N")
	_ = c.RegisterFlagCompletionFunc("device", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"host\tshared memory of this host", "cuda:0\tthe first GPU"}, cobra.ShellCompDirectiveNoFileComp
	})
	return name
}

// deviceIndex is the number that a device's name gives to the default socket. Errors are driver.ErrInvalid.
func deviceIndex(name string) (int, error) {
	_, index, err := driver.ParseDevice(name)
	return index, err
}

// openDevicesFor opens the devices on which a model's storages lie, as its owner names them: the ones to attach it with. Host
// memory is always among them. The caller closes them with closeDevices.
func openDevicesFor(uuids []driver.UUID) (_ []driver.Device, err error) {
	var devices []driver.Device
	defer func() {
		if err != nil {
			err = errors.Join(err, closeDevices(devices))
		}
	}()
	hostDevice, err := openHost()
	if err != nil {
		return nil, err
	}
	devices = append(devices, hostDevice)
	seen := map[driver.UUID]bool{hostDevice.Info().UUID: true}
	for _, uuid := range uuids {
		if seen[uuid] || uuid.IsZero() {
			continue
		}
		seen[uuid] = true
		dev, err := openCUDAUUID(uuid)
		if err != nil {
			return devices, fmt.Errorf("tensors lie on device %s, which cannot be opened here: %w", uuid, err)
		}
		devices = append(devices, dev)
	}
	return devices, nil
}

// closeDevices closes all of them.
func closeDevices(devices []driver.Device) error {
	var errs []error
	for _, dev := range devices {
		errs = append(errs, dev.Close())
	}
	return errors.Join(errs...)
}
