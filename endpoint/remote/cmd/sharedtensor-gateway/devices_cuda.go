//go:build !nocuda

package main

import (
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

// openCUDA opens the GPUs that are visible to this process.
func openCUDA() (devices []driver.Device) {
	for index := 0; ; index++ {
		dev, err := cuda.Open(index)
		if err != nil {
			return devices
		}
		devices = append(devices, dev)
	}
}
