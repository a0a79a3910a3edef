package tensor

import (
	"errors"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

// access is a tensor for the length of one operation: its storage is held, and its memory stays mapped as it is, so
// that neither a Close nor a Seal of another goroutine takes it away. No slice of data outlives the operation.
type access struct {
	*Tensor
	// data is the memory. It is nil where the processor does not address it, and where a read would make the pages that
	// are not there: then ReadAt and WriteAt of the memory are the way.
	data []byte
}

// reading runs fn with the tensor's memory to be read.
func (t *Tensor) reading(fn func(a access) error) error { return t.held(false, fn) }

// writing runs fn with the tensor's memory to be written. Errors besides fn's are those of checkWritable.
func (t *Tensor) writing(fn func(a access) error) error {
	if err := t.checkWritable(); err != nil {
		if t.Closed() {
			return t.hold()
		}
		return err
	}
	return t.held(true, fn)
}

func (t *Tensor) held(write bool, fn func(a access) error) error {
	if err := t.hold(); err != nil {
		return err
	}
	return errors.Join(t.pinned(write, fn), t.storage.Close())
}

func (t *Tensor) pinned(write bool, fn func(a access) error) error {
	mapped, ok := t.storage.mem.(driver.Mapped)
	if !ok || !write && hasHoles(mapped) {
		return fn(access{Tensor: t})
	}
	data, unpin, err := mapped.Pin(write)
	if err != nil {
		return fmt.Errorf("tensor %v%v: %w", t.spec.DType, t.spec.Shape, err)
	}
	defer unpin()
	if err := t.checkData(data); err != nil {
		return err
	}
	return fn(access{Tensor: t, data: data})
}

// hasHoles reports whether a touch of the memory may make pages: reading a publisher's sparse file must not cost its
// size in memory.
func hasHoles(m driver.Memory) bool {
	s, ok := m.(driver.Sparse)
	if !ok {
		return false
	}
	allocated, size, err := s.Allocated()
	return err == nil && allocated < size
}

// checkData refuses memory of another size than the storage was checked with: it is closed.
func (t *Tensor) checkData(data []byte) error {
	if int64(len(data)) != t.storage.bytes {
		return fmt.Errorf("memory of %d bytes: %w", t.storage.bytes, os.ErrClosed)
	}
	return nil
}

// contiguous is the tensor's part of data, or ok is false where there is none in one piece. For packed types the last
// byte may hold bits behind the last element.
func (a access) contiguous() (raw []byte, ok bool) {
	if a.data == nil || !a.Contiguous() {
		return nil, false
	}
	return a.part(a.data), true
}

// part is the tensor's part of its memory.
func (t *Tensor) part(data []byte) []byte {
	end := t.spec.ByteOffset + t.bytes
	return data[t.spec.ByteOffset:end:end]
}
