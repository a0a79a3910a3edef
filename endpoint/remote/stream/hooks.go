package stream

import (
	"context"
	"errors"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Item is one tensor on its way.
type Item struct {
	// ID names the tensor within its transfer.
	ID string
	// Tensor is the tensor.
	Tensor *tensor.Tensor
	// Metadata is what the sender added.
	Metadata map[string]string
}

// Set is named tensors that belong together, such as a model.
type Set struct {
	// ID names the transfer; empty for one that Put makes up. A Source gives equal IDs to equal bytes, so that a Get
	// can be resumed.
	ID string
	// Name is what the set is called.
	Name string
	// Version is the number that the server has for it; 0 for none.
	Version uint64
	// Tensors are the tensors. Their metadata is that of the set.
	Tensors *module.StateDict

	release func() error // what else Close has to do; may be nil
	single  bool         // it is one tensor, of kpu.torch.Service
}

// Close closes the tensors.
func (s *Set) Close() error {
	err := s.Tensors.Close()
	if s.release != nil {
		err = errors.Join(err, s.release())
	}
	return err
}

// Request asks a Source for a set.
type Request struct {
	// Name is the set.
	Name string
	// Version is which one; 0 for the newest.
	Version uint64
	// Tensors are the names wanted; none for all of them.
	Tensors []string
	// Parameters are for the source.
	Parameters map[string]string
}

// Source has what clients ask for.
type Source interface {
	// Set returns an owned set for Get. The error is ErrNotFound where there is none of that name.
	Set(ctx context.Context, request Request) (*Set, error)
	// Tensor returns tensor number index of a request of kpu.torch.Service for several, owned.
	Tensor(ctx context.Context, index int, parameters map[string]string) (*Item, error)
}

// Sink takes what clients send.
type Sink interface {
	// Receive takes a set whose tensors are complete, also when it fails, and returns the version that it got, or 0.
	Receive(ctx context.Context, set *Set) (version uint64, err error)
}

// SinkFunc is a function as a Sink.
type SinkFunc func(ctx context.Context, set *Set) (uint64, error)

// Receive calls f.
func (f SinkFunc) Receive(ctx context.Context, set *Set) (uint64, error) { return f(ctx, set) }

// Processor answers a tensor by another one.
type Processor interface {
	// Process returns an owned tensor for one that it borrows. It may return a clone of it.
	Process(ctx context.Context, item *Item) (*tensor.Tensor, error)
}

// ProcessorFunc is a function as a Processor.
type ProcessorFunc func(ctx context.Context, item *Item) (*tensor.Tensor, error)

// Process calls f.
func (f ProcessorFunc) Process(ctx context.Context, item *Item) (*tensor.Tensor, error) {
	return f(ctx, item)
}

// Identity is the Processor that returns what it gets.
var Identity Processor = ProcessorFunc(func(_ context.Context, item *Item) (*tensor.Tensor, error) { return item.Tensor.Clone(), nil })
