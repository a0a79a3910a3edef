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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// incoming holds the received tensors of an Exchange: incomplete ones, and complete ones that wait to be processed.
type incoming struct {
	limits  Limits
	charge  func() *admission.Charge
	device  driver.Device
	eager   bool
	granted *credit            // credit granted by the peer
	grant   func(uint64) error // grants credit to the peer

	partial map[uint32]*partialTensor // used only by run

	mu    sync.Mutex
	ready []arrived
	err   error // why no more tensors will arrive; io.EOF at the end
	more  chan struct{}
	freed bool
}

// partialTensor is a tensor that is being received.
type partialTensor struct {
	*modelwire.Upload
	id string
}

// arrived is a complete tensor.
type arrived struct {
	index uint32
	item  *Item
	owed  uint64 // credit to grant when the tensor was processed
	done  func() // closes the tensor and returns its bytes to the budget
}

// itemName is the name of a received tensor in its manifest. Items may have any id.
const itemName = "tensor"

func newIncoming(
	ctx context.Context, limits Limits, pool *admission.Pool, dev driver.Device, eager bool, granted *credit, grant func(uint64) error,
) *incoming {
	charge := func() *admission.Charge { return pool.Open(rights.Sender(ctx)) }
	return &incoming{
		limits: limits, charge: charge, device: dev, eager: eager, granted: granted, grant: grant, partial: make(map[uint32]*partialTensor),
		more: make(chan struct{}, 1),
	}
}

// run processes messages until there are no more.
func (in *incoming) run(chunks *bulk.Pump[*streampb.Chunk]) {
	for pace := newPace(in.limits); ; {
		chunk, message, err := next(pace, chunks, len(in.partial) > 0)
		if err == nil {
			err = in.add(chunk, message.Data())
			message.Free()
		}
		if errors.Is(err, io.EOF) {
			in.granted.grant(math.MaxUint64) // the peer can no longer grant credit
			err = in.noMore()
		}
		if err != nil {
			in.end(err)
			return
		}
	}
}

// noMore returns the error of a regular end: io.EOF, or the list of incomplete tensors.
func (in *incoming) noMore() error {
	if len(in.partial) > 0 {
		return fmt.Errorf("%w: %d tensors ended early", ErrIncomplete, len(in.partial))
	}
	return io.EOF
}

// end records why no more tensors will arrive. A regular end does not affect sending.
func (in *incoming) end(err error) {
	for _, u := range in.partial {
		_ = contain.Call(func() error { u.Abandon(); return nil }) // the reader must receive err
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

// add processes a message. It borrows data.
func (in *incoming) add(chunk *streampb.Chunk, data mem.BufferSlice) error {
	if chunk.GetCredit() > 0 {
		in.granted.grant(chunk.GetCredit())
	}
	if chunk.GetEnd() {
		in.end(in.noMore()) // and continue to receive credit
	}
	n := uint64(data.Len())
	if n == 0 && chunk.GetSpec() == nil {
		return nil
	}
	u, err := in.find(chunk)
	if err == nil {
		err = u.Write(1, pieceOf(0, chunk, data))
	}
	if err != nil {
		return err
	}
	if u.Missing() != nil {
		return in.grant(n)
	}
	delete(in.partial, chunk.GetTensor())
	return in.complete(chunk.GetTensor(), u, n)
}

// find returns the tensor of a chunk. It creates the tensor for the first chunk.
func (in *incoming) find(chunk *streampb.Chunk) (*partialTensor, error) {
	u := in.partial[chunk.GetTensor()]
	if chunk.GetSpec() == nil || u != nil {
		if u == nil || chunk.GetSpec() != nil {
			return nil, fmt.Errorf("%w: tensor %d must be described exactly once", ErrInvalid, chunk.GetTensor())
		}
		return u, nil
	}
	if len(in.partial) >= incompletePerCall {
		return nil, fmt.Errorf("%w: more than %d tensors at a time", ErrLimit, incompletePerCall)
	}
	spec := &streampb.TensorSpec{Name: itemName, Dtype: chunk.GetSpec().GetDtype(), Shape: chunk.GetSpec().GetShape()}
	m, err := describe(&streampb.Set{Tensors: []*streampb.TensorSpec{spec}, Metadata: chunk.GetSpec().GetMetadata()}, in.limits)
	if err != nil {
		return nil, err
	}
	arriving, err := modelwire.NewUpload(m, in.device, in.charge(), in.eager)
	if err != nil {
		return nil, err
	}
	u = &partialTensor{arriving, chunk.GetSpec().GetName()}
	in.partial[chunk.GetTensor()] = u
	_, _, err = u.Begin()
	return u, err
}

// complete queues a complete tensor for next.
func (in *incoming) complete(index uint32, u *partialTensor, owed uint64) error {
	held, err := u.Finish(1)
	if err != nil {
		return err
	}
	t, _ := held.Value.Get(itemName)
	done := func() { _ = held.Close() } // best effort: the tensor was processed
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.freed || len(in.ready) >= incompletePerCall {
		done()
		return fmt.Errorf("%w: more than %d tensors wait", ErrLimit, incompletePerCall)
	}
	item := &Item{ID: u.id, Tensor: t, Metadata: u.Manifest().Metadata}
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

// next returns the next complete tensor. The caller calls its done function.
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

// free closes the tensors that were not returned by next.
func (in *incoming) free() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.freed = true
	for _, a := range in.ready {
		a.done()
	}
	in.ready = nil
}
