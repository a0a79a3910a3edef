package transfer

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Devices maps the identifiers that processes exchange to devices.
type Devices map[driver.UUID]driver.Device

// NewDevices returns an error if a device has no identifier or two have the same.
func NewDevices(devices []driver.Device) (Devices, error) {
	set := make(Devices, len(devices))
	for _, dev := range devices {
		if err := driver.CheckDevice(dev); err != nil {
			return nil, status.Configuration(err)
		}
		info := dev.Info()
		if info.UUID.IsZero() {
			return nil, status.Configuration(fmt.Errorf("%w: device %s has no UUID, so no other process could find it", status.ErrInvalid, info))
		}
		if set[info.UUID] != nil {
			return nil, status.Configuration(fmt.Errorf("%w: device %s is listed twice", status.ErrInvalid, info))
		}
		set[info.UUID] = dev
	}
	return set, nil
}

// Find returns the device, or an error if this process does not have it.
func (s Devices) Find(uuid driver.UUID) (driver.Device, error) {
	if dev := s[uuid]; dev != nil {
		return dev, nil
	}
	return nil, status.Capability(&driver.UnsupportedError{
		Feature:  "memory of device " + uuid.String(),
		Reason:   "this process has not opened it",
		Requires: "that device among the Devices of the server or client",
	})
}

// Describe returns the descriptions of the devices for the peer.
func (s Devices) Describe() []message.DeviceInfo {
	list := make([]message.DeviceInfo, 0, len(s))
	for _, dev := range s {
		list = append(list, codec.EncodeDevice(dev.Info()))
	}
	return list
}
