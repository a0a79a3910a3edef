package mirror

import (
	"fmt"
	"io"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// readBytes is the size of one read from a connection. It is small enough that the data is still in the CPU cache when
// it is hashed and copied.
const readBytes = 256 << 10

// buffers holds buffers of readBytes.
var buffers = sync.Pool{New: func() any { return new([readBytes]byte) }}

// slot is the destination of a tensor's bytes.
type slot struct {
	memory driver.Memory
	begin  int64
	data   []byte // the same bytes in the mapping
}

// slotOf returns the slot of a tensor in the slab.
func slotOf(sd *module.StateDict, one *tensorEntry) (slot, error) {
	t, found := sd.Get(one.Name)
	if !found {
		return slot{}, fmt.Errorf("tensor %q is gone", one.Name) // the state dict was created from the manifest
	}
	data, err := tensor.RawData(t)
	if err != nil {
		return slot{}, fmt.Errorf("tensor %q: %w", one.Name, err)
	}
	return slot{t.Storage().Memory(), t.Spec().ByteOffset, data[:one.bytes]}, nil
}

// receive reads the bytes from at to end of the slot from a body and calls received for the bytes stored. It returns their
// number. The bytes are copied through a small buffer with the memory's write method. Reading directly into the mapping
// would fault and clear each new page first, and a page that cannot be allocated would end the process.
func (s slot) receive(body io.Reader, at, end int64, received func(at int64, p []byte)) (n int64, err error) {
	buffer := buffers.Get().(*[readBytes]byte)
	defer buffers.Put(buffer)
	for at < end {
		got, readErr := body.Read(buffer[:min(readBytes, end-at)])
		if got > 0 {
			if _, err := s.memory.WriteAt(buffer[:got], s.begin+at); err != nil {
				return n, err
			}
			received(at, buffer[:got])
			at, n = at+int64(got), n+int64(got)
		}
		if readErr != nil && at < end {
			return n, unexpected(readErr)
		}
	}
	return n, nil
}

// copyFrom copies all bytes from local memory.
func (s slot) copyFrom(here []byte) error {
	_, err := s.memory.WriteAt(here, s.begin)
	return err
}
