package inference

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
)

// openCUDARegion maps memory that a client has allocated with cudaMalloc. handle was returned by cudaIpcGetMemHandle.
func openCUDARegion(devices []driver.Device, handle []byte, device int64, bytes uint64) (regionMemory, error) {
	if want := driver.CUDAIPC.BlobBytes(); len(handle) != want {
		return nil, fmt.Errorf("%w: a CUDA handle has %d bytes, not %d", ErrInvalid, want, len(handle))
	}
	found := false
	for _, d := range devices {
		info := d.Info()
		if info.Type != driver.CUDA {
			continue
		}
		found = true
		if int64(info.Index) != device {
			continue
		}
		memory, err := d.Import(driver.Handle{Kind: driver.CUDAIPC, Device: info.UUID, Bytes: int64(bytes), Blob: handle}, driver.ImportOptions{Writable: true})
		if errors.Is(err, driver.ErrHandle) {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if err != nil {
			return nil, err
		}
		return cudaMemory{memory}, nil
	}
	if !found {
		return nil, fmt.Errorf("%w: CUDA shared memory: this gateway has no CUDA device; use system shared memory", ErrNotServed)
	}
	return nil, fmt.Errorf("%w: this gateway has no CUDA device %d", ErrInvalid, device)
}

// cudaMemory is device memory. The client cannot remove it while it is mapped.
type cudaMemory struct{ memory driver.Memory }

func (m cudaMemory) readAt(p []byte, at int64) error {
	_, err := m.memory.ReadAt(p, at)
	return err
}

func (m cudaMemory) writeAt(p []byte, at int64) error {
	_, err := m.memory.WriteAt(p, at)
	return err
}

func (m cudaMemory) close() error { return m.memory.Close() }
