// Package stream moves tensors between hosts over gRPC. Chunks are not copied between tensors and the connection's
// buffers.
//
// A server has up to three hooks: a [Sink] receives tensors from clients, a [Source] provides tensors that clients
// request, and a [Processor] answers each tensor with another one.
//
//	server, err := stream.NewServer(stream.ServerOptions{Device: dev, Source: source, Sink: sink, Processor: processor})
//	s := grpc.NewServer(server.GRPCOptions()...)
//	server.Register(s)
//
//	client := stream.NewClient(conn, stream.ClientOptions{Device: dev})
//	receipt, err := client.Put(ctx, set)        // atomic; resumes automatically after a broken connection
//	set, err := client.Get(ctx, stream.Request{Name: "silero"})
//
// # Two services
//
// sharedtensor.stream.v1.TensorStream is the service of this project. It sends raw elements with their type and shape,
// in chunks with an offset and a checksum (CRC-32C), under credit-based flow control. Broken transfers are resumed. A
// receiver checks the description of a set against its limits before it allocates memory, and copies the bytes once,
// from the connection's buffers to that memory.
//
// kpu.torch.Service is the service of skytorch's first version, for its Python clients (torchpb, and TorchClient in
// Go). A tensor is a torch.save file, cut into chunks of 1 MiB that may arrive in any order, interleaved with chunks of
// other tensors. Package torchsave reads the files without executing them, and writes the answers. There are three
// differences from skytorch's server: every chunk number must arrive, not only the right count; a tensor that is
// incomplete at the end is an error that names it; and all resources are limited ([Limits]).
//
// # Ownership of memory
//
// A hook must close the sets and items of parameters documented as "takes". The server closes what a hook returns.
// Tensors are sent from their own memory, which stays mapped until the connection has written it and must not be
// modified until then.
//
// # Same host
//
// A client on the server's host does not need to move bytes. [Client.Local] returns the owner's socket, which the
// server reveals to clients that prove that they run on its host. Package endpoint then shares the tensors in place.
package stream

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ServerOptions configures a server. Calls without their hook are refused with ErrNotServed.
type ServerOptions struct {
	// Device is the device for received tensors. Borrowed.
	Device driver.Device
	// Host is host memory, used to make tensors contiguous before they are sent. The default is Device. Borrowed.
	Host driver.Device
	// Source provides the tensors that clients request.
	Source Source
	// Sink receives the sets that clients send.
	Sink Sink
	// Processor answers the tensors of Exchange and StreamTensors.
	Processor Processor
	// CheckWrite returns an error for clients that may not send sets. It is called before the first message of a call
	// with an empty name, and then with the name of the set. nil admits all clients.
	CheckWrite func(ctx context.Context, name string) error
	// Eager means that Device allocates all memory immediately. Then the announced size is charged instead of the
	// received bytes.
	Eager bool
	// NewPool creates the budgets of Limits. The default is admission.NewPool.
	NewPool func(admission.Limits) *admission.Pool
	// Socket returns the path of the owner's socket, which is revealed to clients on the same host. nil means none.
	Socket func() string
	// Limits limits what clients can make the server hold.
	Limits Limits
	// Logger receives messages for operators. The default is slog.Default().
	Logger *slog.Logger
}

// Server implements both services. Its methods are safe for concurrent use.
type Server struct {
	opts      ServerOptions
	limits    Limits
	pool      *admission.Pool // transfers in device memory
	torchPool *admission.Pool // chunks on the heap
	transfers *modelwire.Transfers[*streampb.Done]
}

// NewServer returns a server. The error is ErrInvalid if the options are invalid.
func NewServer(opts ServerOptions) (*Server, error) {
	if opts.Device == nil {
		return nil, fmt.Errorf("%w: a server needs a Device for received tensors", ErrInvalid)
	}
	if opts.Host == nil {
		opts.Host = opts.Device
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.NewPool == nil {
		opts.NewPool = admission.NewPool
	}
	limits := opts.Limits.withDefaults()
	s := &Server{
		opts: opts, limits: limits, pool: opts.NewPool(admission.Limits{Bytes: limits.PendingBytes}),
		torchPool: opts.NewPool(admission.Limits{Bytes: limits.TorchBytes}),
	}
	s.transfers = modelwire.NewTransfers[*streampb.Done](modelwire.TransfersOptions{
		Device: opts.Device, Pool: s.pool, Eager: opts.Eager, Interrupted: limits.Uploads, ResumeFor: limits.ResumeFor, OutcomesFor: limits.OutcomesFor,
	})
	return s, nil
}

// ServiceNames returns the names of the services that Register adds.
func ServiceNames() []string {
	return []string{torchpb.Service_ServiceDesc.ServiceName, streampb.TensorStream_ServiceDesc.ServiceName}
}

// MaxMessageBytes is the maximum message size of a server with GRPCOptions.
const MaxMessageBytes = 16 << 20

// GRPCOptions returns the codec and message size options for a grpc.Server with only this service.
func (s *Server) GRPCOptions() []grpc.ServerOption {
	return append(bulk.ServerOptions(), grpc.MaxRecvMsgSize(MaxMessageBytes))
}

// Register adds the services to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	torchpb.RegisterServiceServer(r, torchService{Server: s})
	streampb.RegisterTensorStreamServer(r, service{Server: s})
}

// Close releases the interrupted transfers. Running calls end with their gRPC server.
func (s *Server) Close() error {
	return s.transfers.Close()
}

// PendingBytes returns the number of bytes that incomplete transfers hold.
func (s *Server) PendingBytes() int64 { return s.pool.Used() + s.torchPool.Used() }

// checkWrite returns an error if the sender of a call may not make changes.
func (s *Server) checkWrite(ctx context.Context, name string) error {
	if s.opts.CheckWrite == nil {
		return nil
	}
	return s.opts.CheckWrite(ctx, name)
}

// process calls the processor and converts a panic to an error.
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

// keyCorrelation is the metadata key with which a client matches the answer to a tensor, independent of the answer's
// ID.
const keyCorrelation = "correlation_id"

// correlationOf returns the metadata to return with the answer to a tensor.
func correlationOf(item *Item) map[string]string {
	id, found := item.Metadata[keyCorrelation]
	if !found {
		return nil
	}
	return map[string]string{keyCorrelation: id}
}
