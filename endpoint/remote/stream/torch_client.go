package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
)

// TorchClient calls kpu.torch.Service of this package or of skytorch. Its methods are safe for concurrent use.
type TorchClient struct {
	rpc    torchpb.ServiceClient
	opts   ClientOptions
	limits Limits
	pool   *admission.Pool
}

// NewTorchClient returns a client of the server behind conn, which it borrows.
func NewTorchClient(conn grpc.ClientConnInterface, opts ClientOptions) *TorchClient {
	if opts.Host == nil {
		opts.Host = opts.Device
	}
	limits := opts.Limits.withDefaults()
	return &TorchClient{rpc: torchpb.NewServiceClient(conn), opts: opts, limits: limits, pool: admission.NewPool(admission.Limits{Bytes: limits.TorchBytes})}
}

// TransferError is the error of a ReceiveTensors call that failed partway.
type TransferError struct {
	// Message is the server's message.
	Message string
	// ReceivedIDs lists the tensors that the server accepted before the error.
	ReceivedIDs []string
}

// Error returns the server's message and the number of accepted tensors.
func (e *TransferError) Error() string {
	return fmt.Sprintf("send tensors: %s (%d were taken before)", e.Message, len(e.ReceivedIDs))
}

// SendTensors sends tensors, which it borrows, and returns their ids at the server, in its order. An item without an ID
// gets a generated one. The error is a *TransferError if the server reports one, or a *RemoteError if the call failed.
func (c *TorchClient) SendTensors(ctx context.Context, items ...*Item) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := c.rpc.ReceiveTensors(ctx, callOptions...)
	if err != nil {
		return nil, remoteError("send tensors", err)
	}
	for _, item := range items {
		if err := c.send(call, item); errors.Is(err, io.EOF) {
			break // the server has already answered with the reason
		} else if err != nil {
			return nil, remoteError("send tensors", err)
		}
	}
	response, err := call.CloseAndRecv()
	if err != nil {
		return nil, remoteError("send tensors", err)
	}
	if !response.GetSuccess() {
		return nil, &TransferError{Message: response.GetMessage(), ReceivedIDs: response.GetReceivedTensorIds()}
	}
	return response.GetReceivedTensorIds(), nil
}

func (c *TorchClient) send(call bulk.Stream, item *Item) error {
	named := *item
	if named.ID == "" {
		named.ID = rand.Text()
	}
	named.Tensor = item.Tensor.Alias()
	return sendTorch(call, &named, c.opts.Host, chunkBytes)
}

// ReceiveTensors requests count tensors and returns them, owned by the caller. The server interprets parameters.
func (c *TorchClient) ReceiveTensors(ctx context.Context, count int, parameters map[string]string) ([]*Item, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := c.rpc.SendTensors(ctx, &torchpb.TensorRequest{Count: uint32(max(0, count)), Parameters: parameters}, callOptions...)
	if err != nil {
		return nil, remoteError("receive tensors", err)
	}
	return c.collect(ctx, call, "receive tensors")
}

// StreamTensors sends tensors, which it borrows, and returns the server's answers, owned by the caller. The id of an
// answer is the tensor's id with the prefix "processed_".
func (c *TorchClient) StreamTensors(ctx context.Context, items ...*Item) ([]*Item, error) {
	ctx, cancel := context.WithCancel(ctx)
	call, err := c.rpc.StreamTensors(ctx, callOptions...)
	if err != nil {
		cancel()
		return nil, remoteError("stream tensors", err)
	}
	sent := make(chan error, 1)
	contain.Go(func() {
		for _, item := range items {
			if err := c.send(call, item); err != nil {
				if !errors.Is(err, io.EOF) { // on EOF, the status has the reason
					cancel()
				}
				sent <- err
				return
			}
		}
		sent <- call.CloseSend()
	}, func(err error) {
		cancel()
		sent <- err
	})
	answers, err := c.collect(ctx, call, "stream tensors")
	cancel()
	if sendErr := <-sent; err == nil && sendErr != nil {
		err = remoteError("stream tensors", sendErr)
	}
	if err != nil {
		closeAll(answers)
		return nil, err
	}
	return answers, nil
}

// collect receives tensors until the call ends.
func (c *TorchClient) collect(ctx context.Context, call bulk.Receiver, op string) (items []*Item, err error) {
	receiver := torchService{Server: &Server{opts: ServerOptions{Device: c.opts.Device}, limits: c.limits, torchPool: c.pool}}
	err = receiver.eachTensor(ctx, call, func(item *Item) error {
		if len(items) >= c.limits.Tensors {
			item.Tensor.Close()
			return fmt.Errorf("%w: more than %d tensors", ErrLimit, c.limits.Tensors)
		}
		items = append(items, item)
		return nil
	})
	if err != nil {
		closeAll(items)
		return nil, remoteError(op, err)
	}
	return items, nil
}

func closeAll(items []*Item) {
	for _, item := range items {
		item.Tensor.Close()
	}
}
