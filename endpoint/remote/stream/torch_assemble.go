package stream

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"

	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchsave"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// assembler assembles the chunks of one call of kpu.torch.Service. It allocates memory for received data only, not for
// claimed sizes.
type assembler struct {
	limits  Limits
	charge  *admission.Charge // bytes on the heap
	partial map[string]*partial
}

// partial is an incomplete tensor.
type partial struct {
	total    uint32
	pieces   map[uint32]*bulk.Message // by chunk number, without heads; each owns its charge
	bytes    int64                    // of the pieces and the metadata
	metadata map[string]string
	charge   *admission.Charge // of the call
	texts    int64             // charge of the metadata
}

// newAssembler returns an assembler, which takes charge.
func newAssembler(limits Limits, charge *admission.Charge) *assembler {
	return &assembler{limits: limits, charge: charge, partial: make(map[string]*partial)}
}

// pieceCost is the overhead of keeping a chunk or an entry of its metadata.
const pieceCost = 256

// add processes a chunk, which it takes with its head. It returns the tensor that the chunk completes, which the caller frees,
// or nil.
func (a *assembler) add(chunk *torchpb.TensorChunk, message *bulk.Message) (*partial, error) {
	id := chunk.GetTensorId()
	p, cost, texts, err := a.accept(chunk, message.Data())
	if err != nil {
		message.Free()
		return nil, fmt.Errorf("tensor %q: %w", id, err)
	}
	message.Head = nil
	message.Own(func() {
		a.charge.Release(cost)
		p.bytes -= cost
	})
	compact(message)
	if old := p.pieces[chunk.GetChunkNumber()]; old != nil { // the later chunk replaces the earlier one
		old.Free()
	}
	p.pieces[chunk.GetChunkNumber()] = message
	p.bytes += cost + texts
	if texts > 0 {
		a.charge.Release(p.texts)
		p.bytes -= p.texts
		p.metadata, p.texts = chunk.GetMetadata(), texts
	}
	if len(p.pieces) < int(p.total) {
		return nil, nil
	}
	delete(a.partial, id)
	return p, nil
}

// accept checks a chunk against the limits and returns its tensor. It charges the chunk and the texts of its metadata.
func (a *assembler) accept(chunk *torchpb.TensorChunk, data mem.BufferSlice) (p *partial, cost, texts int64, err error) {
	total, number := chunk.GetTotalChunks(), chunk.GetChunkNumber()
	cost = int64(data.Len()) + pieceCost + int64(len(chunk.GetTensorId()))
	for key, value := range chunk.GetMetadata() {
		texts += pieceCost + int64(len(key)+len(value))
	}
	switch {
	case total == 0 || number >= total:
		return nil, 0, 0, fmt.Errorf("%w: chunk %d of %d", ErrInvalid, number, total)
	case total > a.limits.Chunks:
		return nil, 0, 0, fmt.Errorf("%w: %d chunks are more than %d", ErrLimit, total, a.limits.Chunks)
	case data.Len() == 0:
		return nil, 0, 0, fmt.Errorf("%w: chunk %d is empty", ErrInvalid, number)
	}
	p = a.partial[chunk.GetTensorId()]
	switch {
	case p == nil && len(a.partial) >= incompletePerCall:
		return nil, 0, 0, fmt.Errorf("%w: more than %d tensors at a time", ErrLimit, incompletePerCall)
	case p == nil:
		p = &partial{total: total, pieces: make(map[uint32]*bulk.Message), charge: a.charge}
	case p.total != total:
		return nil, 0, 0, fmt.Errorf("%w: %d chunks at first, now %d", ErrInvalid, p.total, total)
	}
	if p.bytes+cost+texts > a.limits.TensorBytes {
		return nil, 0, 0, fmt.Errorf("%w: more than %d bytes", ErrLimit, a.limits.TensorBytes)
	}
	if err := a.charge.Add(cost + texts); err != nil {
		return nil, 0, 0, limitError(err)
	}
	a.partial[chunk.GetTensorId()] = p
	return p, cost, texts, nil
}

// compact copies the data of a message that is split into so many small buffers that their overhead exceeds the data.
func compact(message *bulk.Message) {
	if data := message.Data(); len(data) > 2+data.Len()/(4<<10) {
		message.SetData(mem.BufferSlice{mem.SliceBuffer(data.Materialize())})
	}
}

// missing returns an error that lists the incomplete tensors, or nil if there are none.
func (a *assembler) missing() error {
	if len(a.partial) == 0 {
		return nil
	}
	var words []string
	for _, id := range slices.Sorted(maps.Keys(a.partial)) {
		p := a.partial[id]
		words = append(words, fmt.Sprintf("%q (%d of %d chunks)", id, len(p.pieces), p.total))
		if len(words) == 10 {
			words = append(words, fmt.Sprintf("%d in all", len(a.partial)))
			break
		}
	}
	return fmt.Errorf("%w: tensors ended early: %s", ErrIncomplete, strings.Join(words, ", "))
}

// free releases the incomplete tensors.
func (a *assembler) free() {
	for _, p := range a.partial {
		p.free()
	}
	clear(a.partial)
	a.charge.Close()
}

func (p *partial) free() {
	for _, piece := range p.pieces {
		piece.Free()
	}
	p.charge.Release(p.texts)
	p.pieces, p.metadata, p.texts = nil, nil, 0
}

// load reads the tensor of a complete file into memory of dev, copying the elements once.
func (p *partial) load(dev driver.Device) (*tensor.Tensor, error) {
	file := newPieceReader(p)
	f, err := torchsave.Read(file, file.size, torchsave.Limits{})
	if err != nil {
		return nil, err
	}
	entry, err := f.Tensor()
	if err != nil {
		return nil, err
	}
	return f.Load(dev, entry)
}

// pieceReader reads the chunks of a file as an io.ReaderAt.
type pieceReader struct {
	buffers mem.BufferSlice
	starts  []int64 // offset of each buffer
	size    int64
}

func newPieceReader(p *partial) *pieceReader {
	r := &pieceReader{}
	for number := range p.total {
		for _, b := range p.pieces[number].Data() {
			r.buffers = append(r.buffers, b)
			r.starts = append(r.starts, r.size)
			r.size += int64(b.Len())
		}
	}
	return r
}

// ReadAt implements io.ReaderAt.
func (r *pieceReader) ReadAt(dst []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, ErrInvalid
	}
	i := sort.Search(len(r.starts), func(i int) bool { return r.starts[i] > off }) - 1
	for ; n < len(dst) && i >= 0 && i < len(r.buffers); i++ {
		data := r.buffers[i].ReadOnlyData()
		if skip := off + int64(n) - r.starts[i]; skip < int64(len(data)) {
			n += copy(dst[n:], data[skip:])
		}
	}
	if n < len(dst) {
		return n, io.EOF
	}
	return n, nil
}
