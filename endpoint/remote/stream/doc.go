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
