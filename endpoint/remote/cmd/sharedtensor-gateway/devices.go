package main

import (
	"errors"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// openDevices opens host memory and the GPUs of this machine, if any.
func openDevices() (devices []driver.Device, closeAll func() error, err error) {
	dev, err := host.Open()
	if err != nil {
		return nil, nil, err
	}
	devices = append([]driver.Device{dev}, openCUDA()...)
	return devices, func() error {
		var errs []error
		for _, d := range devices {
			errs = append(errs, d.Close())
		}
		return errors.Join(errs...)
	}, nil
}
