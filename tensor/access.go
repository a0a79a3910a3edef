package tensor

import (
	"errors"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

// access is a tensor during one operation. Its storage is held and its memory stays mapped, so a concurrent Close or
// Seal does not unmap it. No slice of data outlives the operation.
type access struct {
	*Tensor
	// data is the memory. It is nil if the processor cannot address the memory, or if a read would allocate missing
	// pages; ReadAt and WriteAt are used then.
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

// hasHoles reports whether touching the memory may allocate pages. Reading a publisher's sparse file must not cost its
// size in memory.
func hasHoles(m driver.Memory) bool {
	d, err := m.Describe()
	return err == nil && d.Allocated < d.Size
}

// copyMapped copies bytes from an offset of held memory; done is false if the processor should not touch the memory. Whether
// pages are missing is checked until none are. Pages that a writer removes later are allocated when they are touched, which
// for single elements costs less than a check.
func (t *Tensor) copyMapped(p []byte, off int64) (done bool, err error) {
	mapped, ok := t.storage.mem.(driver.Mapped)
	if !ok {
		return false, nil
	}
	if complete := &t.storage.Origin().complete; !complete.Load() {
		if hasHoles(mapped) {
			return false, nil
		}
		complete.Store(true)
	}
	data, unpin, err := mapped.Pin(false)
	if err != nil {
		return true, fmt.Errorf("tensor %v%v: %w", t.spec.DType, t.spec.Shape, err)
	}
	defer unpin()
	if err := t.checkData(data); err != nil {
		return true, err
	}
	copy(p, data[off:])
	return true, nil
}

// checkData refuses memory whose size differs from the storage's: it is closed.
func (t *Tensor) checkData(data []byte) error {
	if int64(len(data)) != t.storage.bytes {
		return fmt.Errorf("memory of %d bytes: %w", t.storage.bytes, os.ErrClosed)
	}
	return nil
}

// contiguous returns the tensor's part of data; ok is false if it is not in one piece. For packed types the last byte
// may hold bits behind the last element.
func (a access) contiguous() (raw []byte, ok bool) {
	if a.data == nil || !a.Contiguous() {
		return nil, false
	}
	return a.part(a.data), true
}

// part returns the tensor's part of its memory.
func (t *Tensor) part(data []byte) []byte {
	end := t.spec.ByteOffset + t.bytes
	return data[t.spec.ByteOffset:end:end]
}

// Region returns the memory that contains the elements, and the offset in bytes of the first one. It is for code that
// reads or writes the elements by their address, such as kernels; a writer calls [Storage.Touch] afterwards. The caller
// borrows the memory, which must not be closed meanwhile. Region fails if the tensor is closed or not contiguous.
func (t *Tensor) Region() (mem driver.Memory, offset int64, err error) {
	if t.Closed() {
		return nil, 0, fmt.Errorf("tensor %v%v: %w", t.spec.DType, t.spec.Shape, os.ErrClosed)
	}
	if !t.Contiguous() {
		return nil, 0, fmt.Errorf("%w: tensor %v%v is not contiguous: copy it first", driver.ErrInvalid, t.spec.DType, t.spec.Shape)
	}
	return t.storage.mem, t.spec.ByteOffset, nil
}
