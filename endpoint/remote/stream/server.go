package stream

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ServerOptions says what a server does. Calls without their hook are refused with ErrNotServed.
type ServerOptions struct {
	// Device is where tensors that arrive are put. Borrowed.
	Device driver.Device
	// Host is host memory, for tensors that have to be made contiguous before they are sent; nil for Device. Borrowed.
	Host driver.Device
	// Source has what clients ask for.
	Source Source
	// Sink takes what clients send.
	Sink Sink
	// Processor answers tensors.
	Processor Processor
	// Socket returns the path of the owner's socket, which clients on the same host are told; nil for none.
	Socket func() string
	// Limits bound what clients can make the server hold.
	Limits Limits
	// Logger gets what operators should know; nil for slog.Default().
	Logger *slog.Logger
}

// Server is both services. Its methods are safe for concurrent use.
type Server struct {
	opts        ServerOptions
	limits      Limits
	budget      *budget // of transfers whose memory is allocated
	torchBudget *budget // of chunks on the heap
	uploads     *uploads
}

// NewServer returns a server. The error is ErrInvalid for options that make no sense.
func NewServer(opts ServerOptions) (*Server, error) {
	if opts.Device == nil {
		return nil, fmt.Errorf("%w: a server needs a Device for the tensors that arrive", ErrInvalid)
	}
	if opts.Host == nil {
		opts.Host = opts.Device
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	limits := opts.Limits.withDefaults()
	s := &Server{opts: opts, limits: limits, budget: &budget{limit: limits.PendingBytes}, torchBudget: &budget{limit: limits.TorchBytes}}
	s.uploads = newUploads(limits, s.budget, opts.Device)
	return s, nil
}

// ServiceNames are the services that Register adds.
func ServiceNames() []string {
	return []string{torchpb.Service_ServiceDesc.ServiceName, streampb.TensorStream_ServiceDesc.ServiceName}
}

// MaxMessageBytes is the largest message that a server with GRPCOptions takes.
const MaxMessageBytes = 16 << 20

// GRPCOptions returns options for a grpc.Server that has only this service: the codec, and the size of messages.
func (s *Server) GRPCOptions() []grpc.ServerOption {
	return append(bulk.ServerOptions(), grpc.MaxRecvMsgSize(MaxMessageBytes))
}

// Register adds the services to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	torchpb.RegisterServiceServer(r, torchService{Server: s})
	streampb.RegisterTensorStreamServer(r, service{Server: s})
}

// Close gives back the transfers that wait to be resumed. Calls in progress end as their gRPC server does.
func (s *Server) Close() error {
	s.uploads.close()
	return nil
}

// PendingBytes is what transfers that are not complete hold now.
func (s *Server) PendingBytes() int64 { return s.budget.used() + s.torchBudget.used() }

// process calls the processor; its panic is an error.
func (s *Server) process(ctx context.Context, item *Item) (result *tensor.Tensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.opts.Logger.Error("processor panicked", "tensor", item.ID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("the processor panicked: %v", p)
		}
	}()
	result, err = s.opts.Processor.Process(ctx, item)
	if err == nil && result == nil {
		err = fmt.Errorf("the processor returned no tensor for %q", item.ID)
	}
	return result, err
}

// keyCorrelation is the metadata of a tensor by which a client finds the answer to it, whatever the answer is called.
const keyCorrelation = "correlation_id"

// correlationOf is what goes back with the answer to a tensor.
func correlationOf(item *Item) map[string]string {
	id, found := item.Metadata[keyCorrelation]
	if !found {
		return nil
	}
	return map[string]string{keyCorrelation: id}
}
