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

// fill reads the elements of t from chunks. It borrows first, the first chunk; next returns the others, which fill owns.
// charge charges each chunk before it is stored; it is nil if everything is charged already.
func fill(t *tensor.Tensor, first *bulk.Message, bytes int64, charge func(int64) error, next func() (*bulk.Message, error)) error {
	memory := t.Storage().Memory()
	chunk := first
	defer func() {
		if chunk != nil && chunk != first {
			chunk.Free()
		}
	}()
	for at := int64(0); ; {
		data := chunk.Data()
		n := int64(data.Len())
		if n > bytes-at {
			return fmt.Errorf("%w: more data than the %d bytes of the shape", ErrInvalid, bytes)
		}
		var err error
		if charge != nil {
			err = charge(n)
		}
		if err == nil {
			err = bulk.Store(memory, at, data, nil)
		}
		if err != nil {
			return err
		}
		if at += n; at == bytes {
			return nil
		}
		if chunk != first {
			chunk.Free()
		}
		if chunk, err = next(); err != nil {
			return unexpected(err)
		}
		if chunk.Data().Len() == 0 {
			return fmt.Errorf("%w: an empty chunk", ErrInvalid)
		}
	}
}
