package bulk

import (
	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// BorrowTensor takes ownership of t and returns its elements, row-major, as a buffer that keeps the tensor until it is sent.
// A tensor that is strided, or in memory that the CPU cannot address, is copied to host first.
func BorrowTensor(t *tensor.Tensor, host driver.Device) (mem.Buffer, error) {
	t, err := OnHost(t, host)
	if err != nil {
		return nil, err
	}
	data, err := tensor.RawData(t)
	if err != nil {
		t.Close()
		return nil, err
	}
	if len(data) <= copyUpTo {
		defer t.Close()
		return mem.Copy(data, mem.DefaultBufferPool()), nil
	}
	return Borrow(data, func() { t.Close() }), nil
}

// copyUpTo is the size up to which a copy is cheaper than tracking when the tensor was sent.
const copyUpTo = 16 << 10

// OnHost takes ownership of t and returns a contiguous tensor in host memory with the same elements, owned by the
// caller. It returns t itself if possible.
func OnHost(t *tensor.Tensor, host driver.Device) (*tensor.Tensor, error) {
	if _, err := tensor.RawData(t); err == nil {
		return t, nil
	}
	defer t.Close()
	return t.Copy(host)
}

// Store copies data to memory at an offset. If seen is not nil, it is called with each piece right after its copy.
// Store borrows data.
func Store(memory driver.Memory, at int64, data mem.BufferSlice, seen func([]byte)) error {
	for _, b := range data {
		piece := b.ReadOnlyData()
		if _, err := memory.WriteAt(piece, at); err != nil { // WriteAt can write to pages that are not allocated yet
			return err
		}
		if seen != nil {
			seen(piece)
		}
		at += int64(len(piece))
	}
	return nil
}
