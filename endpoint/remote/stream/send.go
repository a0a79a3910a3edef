package stream

import (
	"context"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// sender sends tensors over a call of TensorStream.
type sender struct {
	ctx    context.Context
	call   bulk.Stream
	credit *credit
	stall  time.Duration
	host   driver.Device
	sent   func(bytes int) // called for each chunk; may be nil
}

// tensor sends the elements of t from the position that the peer already has. It takes t. If the checksum of the
// position does not match, it starts at 0. The first chunk contains spec, which may be nil if the peer has it.
func (s *sender) tensor(index uint32, t *tensor.Tensor, from *streampb.Position, spec *streampb.TensorSpec) error {
	buffer, err := bulk.BorrowTensor(t, s.host)
	if err != nil {
		return err
	}
	defer buffer.Free()
	data := buffer.ReadOnlyData()
	at, crc := resumeAt(data, from)
	if at > 0 && at == len(data) {
		return nil
	}
	for first := true; first || at < len(data); first = false {
		n := min(chunkBytes, len(data)-at)
		if err := s.credit.take(s.ctx, n, s.stall); err != nil {
			return err
		}
		crc = modelwire.Checksum(crc, data[at:at+n])
		m := &bulk.Message{Head: &streampb.Chunk{Offset: uint64(at), Crc32C: crc, Tensor: index, Spec: spec}, Field: dataField}
		if n > 0 {
			m.SetData(mem.BufferSlice{buffer.Slice(at, at+n)})
		}
		if err := bulk.Send(s.call, m); err != nil {
			return err
		}
		if s.sent != nil {
			s.sent(n)
		}
		at += n
		spec = nil
	}
	return nil
}

// resumeAt returns the offset at which to resume, and the checksum of the bytes before it.
func resumeAt(data []byte, from *streampb.Position) (int, uint32) {
	if from == nil || from.GetOffset() > uint64(len(data)) {
		return 0, 0
	}
	at := int(from.GetOffset())
	if crc := modelwire.Checksum(0, data[:at]); crc == from.GetCrc32C() {
		return at, crc
	}
	return 0, 0
}

// set sends the tensors of a set in order.
func (s *sender) set(set *Set, resume []*streampb.Position) error {
	positions := make(map[uint32]*streampb.Position, len(resume))
	for _, p := range resume {
		positions[p.GetTensor()] = p
	}
	index := uint32(0)
	for _, t := range set.Tensors.All() {
		if err := s.tensor(index, t.Alias(), positions[index], nil); err != nil {
			return err
		}
		index++
	}
	return nil
}

// chunkBytes is the size of a chunk, as in kpu.torch.Service. Larger chunks are not faster.
const chunkBytes = 1 << 20

// dataField is the number of the field with the data in chunks of TensorStream, torchField in chunks of
// kpu.torch.Service.
const (
	dataField  protowire.Number = 1
	torchField protowire.Number = 3
)
