package stream

import (
	"fmt"
	"maps"

	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchsave"
)

// sendTorch sends an item as the chunks of a torch.save file. It takes the item.
func sendTorch(s bulk.Stream, item *Item, host driver.Device, chunk int) error {
	t, err := bulk.OnHost(item.Tensor, host)
	if err != nil {
		return err
	}
	file, err := torchsave.Encode(t)
	if err != nil {
		t.Close()
		return err
	}
	body := bulk.Borrow(file.Elements, func() { t.Close() })
	parts := []mem.Buffer{mem.SliceBuffer(file.Head), body, mem.SliceBuffer(file.Tail)}
	defer body.Free()

	metadata := maps.Clone(item.Metadata)
	if metadata == nil {
		metadata = make(map[string]string, 4)
	}
	metadata["shape"] = pythonList(t.Shape())
	metadata["dtype"] = "torch." + t.DType().String()
	metadata["device"] = "cpu"
	metadata["size_bytes"] = fmt.Sprint(file.Size())

	total := uint32((file.Size() + int64(chunk) - 1) / int64(chunk))
	for number := range total {
		head := &torchpb.TensorChunk{TensorId: item.ID, ChunkNumber: number, TotalChunks: total, IsLast: number == total-1}
		if number == 0 {
			head.Metadata = metadata
		}
		m := &bulk.Message{Head: head, Field: torchField}
		m.SetData(window(parts, int(number)*chunk, chunk))
		if err := bulk.Send(s, m); err != nil {
			return err
		}
	}
	return nil
}

// window returns views of up to n bytes, starting at offset of the concatenated buffers.
func window(parts []mem.Buffer, offset, n int) (views mem.BufferSlice) {
	for _, part := range parts {
		size := part.Len()
		if offset < size && n > 0 {
			take := min(n, size-offset)
			views = append(views, part.Slice(offset, offset+take))
			n -= take
			offset = 0
		} else {
			offset = max(0, offset-size)
		}
	}
	return views
}

// pythonList formats a shape as a Python list.
func pythonList(shape []int64) string {
	s := "["
	for i, n := range shape {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprint(n)
	}
	return s + "]"
}
