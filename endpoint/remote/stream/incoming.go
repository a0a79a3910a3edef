package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pump"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// incoming are the tensors of an Exchange as they arrive: those of which chunks are missing, and those that wait to be
// taken.
type incoming struct {
	limits  Limits
	budget  *budget
	device  driver.Device
	granted *credit            // what the peer lets this side send
	grant   func(uint64) error // lets the peer send more

	partial map[uint32]*upload // used by run only

	mu    sync.Mutex
	ready []arrived
	err   error // why no more will come; io.EOF at the end
	more  chan struct{}
	freed bool
}

// arrived is a complete tensor.
type arrived struct {
	index uint32
	item  *Item
	owed  uint64 // credit to be granted when it was taken care of
	done  func() // closes the tensor and gives its bytes back to the budget
}

func newIncoming(limits Limits, b *budget, dev driver.Device, granted *credit, grant func(uint64) error) *incoming {
	return &incoming{limits: limits, budget: b, device: dev, granted: granted, grant: grant, partial: make(map[uint32]*upload), more: make(chan struct{}, 1)}
}

// run takes messages until there are no more.
func (in *incoming) run(chunks *pump.Pump[*streampb.Chunk]) {
	for {
		chunk, message, err := chunks.Next(in.limits.Stall)
		if err == nil {
			err = in.add(chunk, message.TakeData())
		}
		if errors.Is(err, io.EOF) {
			in.granted.grant(math.MaxUint64) // nobody is left to grant
			err = in.noMore()
		}
		if err != nil {
			in.end(err)
			return
		}
	}
}

// noMore is the orderly end: io.EOF, or which tensors it has left incomplete.
func (in *incoming) noMore() error {
	if len(in.partial) > 0 {
		return fmt.Errorf("%w: %d tensors ended early", ErrIncomplete, len(in.partial))
	}
	return io.EOF
}

// end notes why no more will come. An orderly end leaves what this side sends alone.
func (in *incoming) end(err error) {
	for _, u := range in.partial {
		u.abandon()
	}
	clear(in.partial)
	if !errors.Is(err, io.EOF) {
		in.granted.end(err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.err = err
	}
	in.wakeLocked()
}

// add takes a message.
func (in *incoming) add(chunk *streampb.Chunk, data mem.BufferSlice) error {
	if chunk.GetCredit() > 0 {
		in.granted.grant(chunk.GetCredit())
	}
	if chunk.GetEnd() {
		in.end(in.noMore()) // and listen to what credit comes
	}
	n := uint64(data.Len())
	if n == 0 && chunk.GetSpec() == nil {
		data.Free()
		return nil
	}
	u, err := in.find(chunk)
	if err != nil {
		data.Free()
		return err
	}
	if err := u.write(1, 0, chunk, data); err != nil {
		return err
	}
	if u.missing() != nil {
		return in.grant(n)
	}
	delete(in.partial, chunk.GetTensor())
	return in.complete(chunk.GetTensor(), u, n)
}

// find returns the tensor of a chunk, and makes it where the chunk is its first.
func (in *incoming) find(chunk *streampb.Chunk) (*upload, error) {
	u := in.partial[chunk.GetTensor()]
	if chunk.GetSpec() == nil || u != nil {
		if u == nil || chunk.GetSpec() != nil {
			return nil, fmt.Errorf("%w: tensor %d is described never or twice", ErrInvalid, chunk.GetTensor())
		}
		return u, nil
	}
	if len(in.partial) >= incompletePerCall {
		return nil, fmt.Errorf("%w: more than %d tensors at a time", ErrLimit, incompletePerCall)
	}
	d, err := describe(&streampb.Set{Tensors: []*streampb.TensorSpec{chunk.GetSpec()}, Metadata: chunk.GetSpec().GetMetadata()}, in.limits)
	if err != nil {
		return nil, err
	}
	if u, err = newUpload(d, in.device, in.budget); err != nil {
		return nil, err
	}
	in.partial[chunk.GetTensor()] = u
	_, _, err = u.begin()
	return u, err
}

// complete puts a tensor where next finds it.
func (in *incoming) complete(index uint32, u *upload, owed uint64) error {
	one := u.description.tensors[0]
	t, err := tensor.New(u.storage, one.spec)
	if err != nil {
		u.abandon()
		return err
	}
	done := func() { t.Close(); u.abandon() }
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.freed || len(in.ready) >= incompletePerCall {
		done()
		return fmt.Errorf("%w: more than %d tensors wait", ErrLimit, incompletePerCall)
	}
	item := &Item{ID: one.name, Tensor: t, Metadata: u.description.metadata}
	in.ready = append(in.ready, arrived{index: index, item: item, owed: owed, done: done})
	in.wakeLocked()
	return nil
}

func (in *incoming) wakeLocked() {
	select {
	case in.more <- struct{}{}:
	default:
	}
}

// next returns the next complete tensor. The caller calls its done.
func (in *incoming) next(ctx context.Context) (arrived, error) {
	for {
		in.mu.Lock()
		if len(in.ready) > 0 {
			first := in.ready[0]
			in.ready = in.ready[1:]
			in.mu.Unlock()
			return first, nil
		}
		err := in.err
		in.mu.Unlock()
		if err != nil {
			return arrived{}, err
		}
		select {
		case <-in.more:
		case <-ctx.Done():
			return arrived{}, context.Cause(ctx)
		}
	}
}

// free closes what nobody has taken.
func (in *incoming) free() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.freed = true
	for _, a := range in.ready {
		a.done()
	}
	in.ready = nil
}
