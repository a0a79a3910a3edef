// Package stream moves tensors between hosts over gRPC, in chunks that are not copied on their way to and from the
// connection.
//
// A server has up to three hooks: a Sink takes what clients send, a Source has what they ask for, a Processor answers
// each tensor by another one.
//
//	server, err := stream.NewServer(stream.ServerOptions{Device: dev, Source: source, Sink: sink, Processor: processor})
//	s := grpc.NewServer(server.GRPCOptions()...)
//	server.Register(s)
//
//	client := stream.NewClient(conn, stream.ClientOptions{Device: dev})
//	receipt, err := client.Put(ctx, set)        // whole or not at all; goes on by itself where a connection broke
//	set, err := client.Get(ctx, stream.Request{Name: "silero"})
//
// # Two services
//
// sharedtensor.stream.v1.TensorStream is this project's own: raw elements with their type and shape, in chunks with an
// offset and a checksum (CRC-32C), with credit, and resumed where a connection broke. The memory for a set is checked
// against the limits and allocated when its description has come; the bytes are copied once, from the connection's
// buffers to that memory.
//
// kpu.torch.Service is that of skytorch's first version, for its Python clients (torchpb, and TorchClient in Go). There
// a tensor is a file of torch.save, cut into chunks of 1 MiB that may come in any order and between those of others.
// Files are read by package torchsave, which executes nothing, and answers are such files again. What differs from that
// server: the pieces of a tensor have to be there by number, not only by count; a tensor that is incomplete at the end
// is an error that names it; and everything is bounded (Limits).
//
// # Whose memory
//
// A set or item that is passed to a hook is the hook's to close where its comment says "takes"; what a hook returns is
// the server's to close. Bytes that are being sent are memory of the tensor itself, which stays mapped until the
// connection has written them: nobody may write to it meanwhile.
//
// # Same host
//
// A client on the server's host need not move bytes: Client.Local asks for the owner's socket, which the server tells
// to those who prove that they run on its host, and package endpoint then shares the tensors in place.
package stream
