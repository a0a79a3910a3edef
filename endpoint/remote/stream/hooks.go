package stream

import (
	"context"
	"errors"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Item is a single tensor in a transfer.
type Item struct {
	// ID identifies the tensor within its transfer.
	ID     string
	Tensor *tensor.Tensor
	// Metadata is set by the sender.
	Metadata map[string]string
}

// Set is a group of named tensors, such as a model.
type Set struct {
	// ID identifies the transfer. If it is empty, Put generates one. A Source must return equal IDs only for equal
	// bytes, which makes a Get resumable.
	ID string
	// Name is the name of the set.
	Name string
	// Version is the version at the server, or 0 if there is none.
	Version uint64
	// Tensors holds the tensors and the metadata of the set.
	Tensors *module.StateDict

	release func() error // extra cleanup of Close; may be nil
	single  bool         // a single tensor of kpu.torch.Service
}

// Close closes the tensors.
func (s *Set) Close() error {
	err := s.Tensors.Close()
	if s.release != nil {
		err = errors.Join(err, s.release())
	}
	return err
}

// Request selects a set of a Source.
type Request struct {
	// Name is the name of the set.
	Name string
	// Version is the version of the set. 0 means the newest.
	Version uint64
	// Tensors lists the requested names. Empty means all.
	Tensors []string
	// Parameters are passed to the source.
	Parameters map[string]string
}

// Source provides the tensors that clients request.
type Source interface {
	// Set returns a set for Get, owned by the caller. The error is ErrNotFound if the name does not exist.
	Set(ctx context.Context, request Request) (*Set, error)
	// Tensor returns the tensor at index of a kpu.torch.Service request for several tensors. The caller owns it.
	Tensor(ctx context.Context, index int, parameters map[string]string) (*Item, error)
}

// Sink receives the sets that clients send.
type Sink interface {
	// Receive takes a complete set, also when it fails, and returns its version, or 0 if it has none.
	Receive(ctx context.Context, set *Set) (version uint64, err error)
}

// SinkFunc adapts a function to Sink.
type SinkFunc func(ctx context.Context, set *Set) (uint64, error)

// Receive calls f.
func (f SinkFunc) Receive(ctx context.Context, set *Set) (uint64, error) { return f(ctx, set) }

// Processor answers a tensor with another tensor.
type Processor interface {
	// Process returns the answer, owned by the caller. It borrows item and may return an alias of its tensor.
	Process(ctx context.Context, item *Item) (*tensor.Tensor, error)
}

// ProcessorFunc adapts a function to Processor.
type ProcessorFunc func(ctx context.Context, item *Item) (*tensor.Tensor, error)

// Process calls f.
func (f ProcessorFunc) Process(ctx context.Context, item *Item) (*tensor.Tensor, error) {
	return f(ctx, item)
}

// Identity is the Processor that returns its input.
var Identity Processor = ProcessorFunc(func(_ context.Context, item *Item) (*tensor.Tensor, error) { return item.Tensor.Alias(), nil })
