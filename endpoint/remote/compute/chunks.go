package compute

import (
	"fmt"

	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// chunkBytes is the size of a chunk of ComputeStream. Larger chunks are not faster.
const chunkBytes = 1 << 20

// sendChunks sends a tensor's elements: the first chunk in first, the others in messages returned by next. It borrows
// buffer.
func sendChunks(call bulk.Stream, first *bulk.Message, buffer mem.Buffer, next func() *bulk.Message) error {
	for at, m := 0, first; m == first || at < buffer.Len(); m = next() {
		n := min(chunkBytes, buffer.Len()-at)
		if n > 0 {
			m.SetData(mem.BufferSlice{buffer.Slice(at, at+n)})
		}
		if err := bulk.Send(call, m); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// fill reads the elements of t from chunks. It takes ownership of data, the first chunk; next returns the others.
// charge charges each chunk before it is stored; it is nil if everything is charged already.
func fill(t *tensor.Tensor, data mem.BufferSlice, bytes int64, charge func(int64) error, next func() (mem.BufferSlice, error)) error {
	memory := t.Storage().Memory()
	for at := int64(0); ; {
		n := int64(data.Len())
		if n > bytes-at {
			data.Free()
			return fmt.Errorf("%w: more data than the %d bytes of the shape", ErrInvalid, bytes)
		}
		var err error
		if charge != nil {
			err = charge(n)
		}
		if err == nil {
			err = bulk.Store(memory, at, data, nil)
		}
		data.Free()
		if err != nil {
			return err
		}
		if at += n; at == bytes {
			return nil
		}
		if data, err = next(); err != nil {
			return unexpected(err)
		}
		if data.Len() == 0 {
			data.Free()
			return fmt.Errorf("%w: an empty chunk", ErrInvalid)
		}
	}
}
