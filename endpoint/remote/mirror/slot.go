package mirror

import (
	"fmt"
	"io"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// readBytes is how much of a connection is read at once: little enough that it is in the processor's cache still when
// it is hashed and written.
const readBytes = 256 << 10

// buffers are of readBytes.
var buffers = sync.Pool{New: func() any { return new([readBytes]byte) }}

// slot is where the bytes of a tensor go.
type slot struct {
	memory driver.Memory
	begin  int64
	data   []byte // the same in the mapping
}

// slotOf is the slot of a tensor in the slab.
func slotOf(sd *module.StateDict, one *tensorEntry) (slot, error) {
	t, found := sd.Get(one.Name)
	if !found {
		return slot{}, fmt.Errorf("tensor %q is gone", one.Name) // the state dict was made of the manifest
	}
	data, err := tensor.RawData(t)
	if err != nil {
		return slot{}, fmt.Errorf("tensor %q: %w", one.Name, err)
	}
	return slot{t.Storage().Memory(), t.Spec().ByteOffset, data[:one.bytes]}, nil
}

// receive reads the bytes from at to end of the slot from a body, tells of all that are in place, and returns how many
// those are. They go through a small buffer and by the memory's own way of being written: read into the mapping, each
// page of new memory would fault and be cleared before the bytes come, and one that cannot be had would end the
// process.
func (s slot) receive(body io.Reader, at, end int64, came func(at int64, p []byte)) (n int64, err error) {
	buffer := buffers.Get().(*[readBytes]byte)
	defer buffers.Put(buffer)
	for at < end {
		got, readErr := body.Read(buffer[:min(readBytes, end-at)])
		if got > 0 {
			if _, err := s.memory.WriteAt(buffer[:got], s.begin+at); err != nil {
				return n, err
			}
			came(at, buffer[:got])
			at, n = at+int64(got), n+int64(got)
		}
		if readErr != nil && at < end {
			return n, unexpected(readErr)
		}
	}
	return n, nil
}

// copyFrom copies all bytes from memory that is here.
func (s slot) copyFrom(here []byte) error {
	_, err := s.memory.WriteAt(here, s.begin)
	return err
}
