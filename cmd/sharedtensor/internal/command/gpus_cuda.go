//go:build !nocuda

package command

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml"
)

// openNVML initialises NVML once. The session ends with the process, because the first initialisation is slow.
var openNVML = sync.OnceValues(nvml.Open)

// readGPUs returns the GPUs of this host with the processes that hold their memory.
func readGPUs() ([]gpuUse, error) {
	session, err := openNVML()
	var library *nvml.LibraryError
	if errors.Is(err, nvml.ErrNoLibrary) && !(errors.As(err, &library) && library.Found != "") {
		return nil, fmt.Errorf("%w: %w", errNoNVML, err)
	}
	if err != nil {
		return nil, err
	}
	all, err := session.Status()
	if err != nil {
		return nil, err
	}
	list := []gpuUse{}
	for i := range all {
		list = append(list, newGPUUse(&all[i]))
	}
	return list, nil
}

func newGPUUse(s *nvml.Status) gpuUse {
	g := gpuUse{
		Index: s.Index, UUID: strings.TrimPrefix(s.UUID, "GPU-"), Name: s.Name, Temperature: s.Temperature, Watts: s.Watts, Processes: []gpuProcess{},
	}
	if s.Memory != nil {
		g.Total, g.Used = int64(s.Memory.Total), int64(s.Memory.Used)
	}
	if s.Busy != nil {
		g.Busy = &s.Busy.GPU
	}
	for _, p := range s.Processes {
		g.Processes = append(g.Processes, gpuProcess{PID: p.PID, Bytes: p.Bytes, Uses: p.Uses.String(), Command: commandOf(p.PID)})
	}
	if s.Err != nil {
		g.Error = strings.ReplaceAll(s.Err.Error(), "\n", "; ")
	}
	for _, d := range s.MIG.Devices {
		status, err := d.Status()
		m := gpuInstance{UUID: strings.TrimPrefix(status.UUID, "MIG-")}
		if status.Memory != nil {
			m.Total, m.Used = int64(status.Memory.Total), int64(status.Memory.Used)
		}
		if err != nil {
			m.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		g.Instances = append(g.Instances, m)
	}
	return g
}
