package stream

import (
	"fmt"

	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// maxID limits the length of ids and names, in bytes.
const maxID = 4096

// describe validates a peer's description of a set. It allocates nothing of the claimed size.
func describe(set *streampb.Set, limits Limits) (*modelwire.Manifest, error) {
	if len(set.GetId()) > maxID || len(set.GetName()) > maxID {
		return nil, fmt.Errorf("%w: a name of more than %d bytes", ErrInvalid, maxID)
	}
	if n := len(set.GetTensors()); n > limits.Tensors {
		return nil, fmt.Errorf("%w: %d tensors are more than %d", ErrLimit, n, limits.Tensors)
	}
	specs := make([]module.NamedSpec, len(set.GetTensors()))
	for i, s := range set.GetTensors() {
		dtype, err := tensor.ParseDType(s.GetDtype())
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w: %w", s.GetName(), ErrInvalid, err)
		}
		specs[i] = module.NamedSpec{Name: s.GetName(), DType: dtype, Shape: s.GetShape()}
	}
	m, err := modelwire.NewManifest(specs, set.GetMetadata(), modelwire.Limits{Bytes: limits.PendingBytes, TensorBytes: limits.TensorBytes})
	if err != nil {
		return nil, err
	}
	m.Name, m.Version = set.GetName(), set.GetVersion()
	return m, nil
}

// describeSet returns the description that a sender sends.
func describeSet(set *Set) *streampb.Set {
	out := &streampb.Set{Id: set.ID, Name: set.Name, Version: set.Version, Metadata: set.Tensors.Metadata}
	for name, t := range set.Tensors.All() {
		out.Tensors = append(out.Tensors, specOf(name, t, nil))
	}
	return out
}

func specOf(name string, t *tensor.Tensor, metadata map[string]string) *streampb.TensorSpec {
	return &streampb.TensorSpec{Name: name, Dtype: t.DType().String(), Shape: t.Shape(), Metadata: metadata}
}

// pieceOf returns the piece of a tensor in a chunk. It borrows data.
func pieceOf(tensor int, chunk *streampb.Chunk, data mem.BufferSlice) *modelwire.Piece {
	p := &modelwire.Piece{Position: modelwire.Position{Tensor: tensor, Offset: int64(chunk.GetOffset()), CRC32C: chunk.GetCrc32C()}}
	for _, b := range data {
		p.Data = append(p.Data, b.ReadOnlyData())
	}
	return p
}

// positionsOf converts positions to messages.
func positionsOf(list []modelwire.Position) (out []*streampb.Position) {
	for _, p := range list {
		out = append(out, &streampb.Position{Tensor: uint32(p.Tensor), Offset: uint64(p.Offset), Crc32C: p.CRC32C})
	}
	return out
}
