package nvml_test

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml"
)

func ExampleOpen() {
	session, err := nvml.Open()
	if errors.Is(err, nvml.ErrNoLibrary) {
		fmt.Println("no NVIDIA driver on this host")
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }() // best effort: the state has been read
	devices, err := session.Devices()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range devices {
		status, err := d.Status()
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(status.Name, status.UUID)
		for _, p := range status.Processes {
			fmt.Println(p.PID, p.Uses, p.Bytes)
		}
	}
}
