// Package elements makes the elements of tensors what gRPC sends and receives.
package elements

import (
	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Borrow takes t and returns its elements, row-major, as a buffer that keeps the tensor until it was sent. A tensor
// that is strided or in memory that the processor does not address is copied to host first.
func Borrow(t *tensor.Tensor, host driver.Device) (mem.Buffer, error) {
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
	return bulk.Borrow(data, func() { t.Close() }), nil
}

// copyUpTo is the size up to which a copy costs less than knowing when the tensor was sent.
const copyUpTo = 16 << 10

// OnHost takes t and returns a contiguous tensor in host memory with its elements, owned: t itself where it is that.
func OnHost(t *tensor.Tensor, host driver.Device) (*tensor.Tensor, error) {
	if _, err := tensor.RawData(t); err == nil {
		return t, nil
	}
	defer t.Close()
	return t.Copy(host)
}

// Store copies data to memory at an offset. seen is told of each piece right after its copy; it may be nil. It borrows
// data.
func Store(memory driver.Memory, at int64, data mem.BufferSlice, seen func([]byte)) error {
	for _, b := range data {
		piece := b.ReadOnlyData()
		if _, err := memory.WriteAt(piece, at); err != nil { // which knows how to write to pages that are not there yet
			return err
		}
		if seen != nil {
			seen(piece)
		}
		at += int64(len(piece))
	}
	return nil
}
