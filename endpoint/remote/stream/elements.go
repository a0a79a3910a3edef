package stream

import (
	"hash/crc32"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// chunkBytes is the size of a chunk, as in kpu.torch.Service. Larger ones are not faster.
const chunkBytes = 1 << 20

// castagnoli is the table of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func protoNumber(n int32) protowire.Number { return protowire.Number(n) }

// elements are the bytes of a tensor, row-major, as a buffer that keeps the tensor until it was sent.
type elements struct {
	buffer mem.Buffer
	data   []byte
}

// newElements takes t. A tensor that is strided or in memory that the processor does not address is copied to host first.
func newElements(t *tensor.Tensor, host driver.Device) (*elements, error) {
	t, err := onHost(t, host)
	if err != nil {
		return nil, err
	}
	data, err := tensor.RawData(t)
	if err != nil {
		t.Close()
		return nil, err
	}
	buffer := bulk.Borrow(data, func() { t.Close() })
	return &elements{buffer: buffer, data: buffer.ReadOnlyData()}, nil
}

// onHost takes t and returns a contiguous tensor in host memory with its elements, owned: t itself where it is that.
func onHost(t *tensor.Tensor, host driver.Device) (*tensor.Tensor, error) {
	if _, err := tensor.RawData(t); err == nil {
		return t, nil
	}
	defer t.Close()
	return t.Copy(host)
}

// free gives the tensor back, when what is being sent of it was sent.
func (e *elements) free() { e.buffer.Free() }

// bytesOf is the size of a tensor that a spec describes, row-major without gaps.
func bytesOf(dtype tensor.DType, shape tensor.Shape) (int64, error) {
	return tensor.Spec{DType: dtype, Shape: shape}.ByteLen()
}
