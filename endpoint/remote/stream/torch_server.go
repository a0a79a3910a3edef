package stream

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
	"github.com/sharedtensor/sharedtensor/module"
)

// torchService implements kpu.torch.Service.
type torchService struct {
	torchpb.UnimplementedServiceServer
	*Server
}

// ReceiveTensors passes each complete tensor to the sink. Errors of a tensor are reported in the response, as Python
// clients of the service expect. The tensors before it were accepted.
func (s torchService) ReceiveTensors(call grpc.ClientStreamingServer[torchpb.TensorChunk, torchpb.TensorResponse]) error {
	if s.opts.Sink == nil {
		return admission.Status(fmt.Errorf("%w: this server accepts no tensors", ErrNotServed))
	}
	if err := s.checkWrite(call.Context(), ""); err != nil {
		return admission.Status(err)
	}
	var ids []string
	err := s.eachTensor(call.Context(), call, func(item *Item) error {
		if err := s.deliver(call.Context(), item); err != nil {
			return fmt.Errorf("tensor %q: %w", item.ID, err)
		}
		ids = append(ids, item.ID)
		return nil
	})
	if call.Context().Err() != nil {
		return admission.Status(context.Cause(call.Context()))
	}
	response := &torchpb.TensorResponse{Success: err == nil, ReceivedTensorIds: ids, Message: fmt.Sprintf("Received %d tensor(s)", len(ids))}
	if err != nil {
		response.Message = "Error: " + err.Error()
	}
	return call.SendAndClose(response)
}

// deliver passes an item to the sink as a set with one tensor. It takes the item.
func (s torchService) deliver(ctx context.Context, item *Item) error {
	sd := module.NewStateDict()
	sd.Metadata = item.Metadata
	if err := sd.Set(item.ID, item.Tensor); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	_, err := s.opts.Sink.Receive(ctx, &Set{ID: item.ID, Name: item.ID, Tensors: sd, single: true})
	return err
}

// SendTensors sends the requested number of tensors from the source.
func (s torchService) SendTensors(request *torchpb.TensorRequest, call grpc.ServerStreamingServer[torchpb.TensorChunk]) error {
	if s.opts.Source == nil {
		return admission.Status(fmt.Errorf("%w: this server has no tensors to send", ErrNotServed))
	}
	count := max(1, int(request.GetCount()))
	if count > s.limits.Tensors {
		return admission.Status(fmt.Errorf("%w: %d tensors are more than %d", ErrLimit, count, s.limits.Tensors))
	}
	for index := range count {
		item, err := s.opts.Source.Tensor(call.Context(), index, request.GetParameters())
		if err == nil {
			err = sendTorch(call, item, s.opts.Host, chunkBytes)
		}
		if err != nil {
			return admission.Status(fmt.Errorf("Error sending tensors: %w", err)) //nolint:staticcheck // the words that clients of the service know
		}
	}
	return nil
}

// StreamTensors answers each tensor. The answer has the tensor's id with the prefix "processed_", and its correlation
// id.
func (s torchService) StreamTensors(call grpc.BidiStreamingServer[torchpb.TensorChunk, torchpb.TensorChunk]) error {
	if s.opts.Processor == nil {
		return admission.Status(fmt.Errorf("%w: this server processes no tensors", ErrNotServed))
	}
	return admission.Status(s.eachTensor(call.Context(), call, func(item *Item) error {
		defer item.Tensor.Close()
		result, err := s.process(call.Context(), item)
		if err != nil {
			return err
		}
		return sendTorch(call, &Item{ID: "processed_" + item.ID, Tensor: result, Metadata: correlationOf(item)}, s.opts.Host, chunkBytes)
	}))
}

// eachTensor receives tensors and passes them to f, which takes them.
func (s torchService) eachTensor(ctx context.Context, call bulk.Receiver, f func(*Item) error) error {
	assembly := newAssembler(s.limits, s.torchPool.Open(rights.Sender(ctx)))
	defer assembly.free()
	chunks := bulk.NewPump(ctx, call, func() *torchpb.TensorChunk { return new(torchpb.TensorChunk) }, torchField)
	for pace := newPace(s.limits); ; {
		chunk, message, err := next(pace, chunks, len(assembly.partial) > 0)
		if errors.Is(err, io.EOF) {
			return assembly.missing()
		}
		if err != nil {
			return err
		}
		if err := s.addChunk(assembly, chunk, message, f); err != nil {
			return err
		}
	}
}

func (s torchService) addChunk(a *assembler, chunk *torchpb.TensorChunk, message *bulk.Message, f func(*Item) error) error {
	whole, err := a.add(chunk, message)
	if err != nil || whole == nil {
		return err
	}
	t, err := whole.load(s.opts.Device)
	metadata := whole.metadata
	whole.free()
	if err != nil {
		return fmt.Errorf("tensor %q: %w", chunk.GetTensorId(), err)
	}
	return f(&Item{ID: chunk.GetTensorId(), Tensor: t, Metadata: metadata})
}
