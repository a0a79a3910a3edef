package stream

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// repetition is a Put of a set that was already passed to the sink. Nothing is stored. The server reports each tensor
// as complete. Data that the client sends nevertheless must have the checksums of the first transfer.
type repetition struct {
	description *description
	outcome     *outcome
	progress    []progress
}

// repeat answers a Put whose transfer has an outcome.
func (s service) repeat(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply], chunks *bulk.Pump[*streampb.Chunk], d *description, o *outcome) error {
	r := &repetition{d, o, make([]progress, len(d.tensors))}
	var resume []*streampb.Position
	for i, one := range d.tensors {
		r.progress[i] = progress{bytes: one.bytes, crc32c: o.crc32c[i]}
		if one.bytes > 0 {
			resume = append(resume, &streampb.Position{Tensor: uint32(i), Offset: uint64(one.bytes), Crc32C: o.crc32c[i]})
		}
	}
	if err := call.Send(&streampb.PutReply{Credit: uint64(s.limits.Window), Resume: resume}); err != nil {
		return err
	}
	pace, owed := newPace(s.limits), uint64(0)
	for {
		chunk, message, err := next(pace, chunks, true)
		if errors.Is(err, io.EOF) {
			if err := r.check(); err != nil {
				return err
			}
			return call.Send(&streampb.PutReply{Done: o.done})
		}
		if err != nil {
			return err
		}
		n, err := r.compare(chunk, message)
		if err != nil {
			return err
		}
		if owed += n; owed >= uint64(s.limits.Window)/4 {
			if err := call.Send(&streampb.PutReply{Credit: owed}); err != nil {
				return err
			}
			owed = 0
		}
	}
}

// compare processes a chunk.
func (r *repetition) compare(chunk *streampb.Chunk, message *bulk.Message) (uint64, error) {
	data := message.TakeData()
	defer data.Free()
	index := chunk.GetTensor()
	if int64(index) >= int64(len(r.progress)) {
		return 0, fmt.Errorf("%w: tensor %d of %d", ErrInvalid, index, len(r.progress))
	}
	one, p, n := r.description.tensors[index], &r.progress[index], int64(data.Len())
	if chunk.GetOffset() == 0 {
		*p = progress{}
	}
	if chunk.GetOffset() != uint64(p.bytes) || n > one.bytes-p.bytes {
		return 0, fmt.Errorf("%w: tensor %q: %d bytes at %d, where %d of %d are there", ErrInvalid, one.name, n, chunk.GetOffset(), p.bytes, one.bytes)
	}
	for _, piece := range data {
		p.crc32c = crc32.Update(p.crc32c, castagnoli, piece.ReadOnlyData())
	}
	if p.crc32c != chunk.GetCrc32C() {
		return 0, fmt.Errorf("%w: tensor %q at %d: %08x instead of %08x", ErrChecksum, one.name, p.bytes, p.crc32c, chunk.GetCrc32C())
	}
	if p.bytes += n; p.bytes == one.bytes {
		return uint64(n), r.checkTensor(int(index))
	}
	return uint64(n), nil
}

func (r *repetition) checkTensor(i int) error {
	if p, one := r.progress[i], r.description.tensors[i]; p.bytes == one.bytes && p.crc32c != r.outcome.crc32c[i] {
		return fmt.Errorf("%w: the transfer id %q was used for other bytes of tensor %q: use a new id", ErrInvalid, r.description.id, one.name)
	}
	return nil
}

// check returns an error unless all bytes equal those of the first transfer.
func (r *repetition) check() error {
	for i, p := range r.progress {
		if one := r.description.tensors[i]; p.bytes < one.bytes {
			return fmt.Errorf("%w: tensor %q has %d of %d bytes", ErrIncomplete, one.name, p.bytes, one.bytes)
		}
		if err := r.checkTensor(i); err != nil {
			return err
		}
	}
	return nil
}
