// Package compute runs functions with one tensor in and one tensor out over gRPC.
//
//	server, err := compute.NewServer(ctx, compute.ServerOptions{Function: compute.Func(func(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
//		return model.Forward(in)
//	})})
//	err = server.Serve(listener)                            // with grpc.health.v1 and reflection, until Shutdown
//
//	client, err := compute.Dial(ctx, "localhost:50051", compute.ClientOptions{})
//	out, err := client.Compute(ctx, in)
//
// # The wire
//
// The service is splitlearn.comm.ComputeService, so the Python clients and servers of splitlearn-comm are peers:
// elements are float32, row-major and little-endian, with their shape. What goes beyond is said by entries of a
// message's metadata:
//
//	dtype               element type of data, by PyTorch's name; float32 where it is missing
//	compression         what data is compressed by: "zlib" or "zstd"
//	accept-dtype        "any": the response may have the type of the result; else it is converted to float32
//	accept-compression  what the response may be compressed by, such as "zstd,zlib"
//	traceparent         that of W3C, in the metadata of the call itself
//
// A request whose data is compressed by zlib without saying so, as that of splitlearn-comm's CompressedTensorCodec, is
// answered in kind. A client sends other types and compressed data only to servers whose custom_info has "protocol":
// Protocol.
//
// Besides, a client may have gRPC compress whole messages: gzip and deflate are there. Compression is left out where it
// would not pay: below 4 KiB, where a sample of a message does not get smaller by a tenth, in ComputeStream, and to a
// server on the same host.
//
// ComputeStream carries what is too large for one message, in both directions. Clients take it above
// ClientOptions.StreamFrom.
//
// # What is not served
//
// Training (forward_id, training_mode, ComputeBackward), caches of generation (past_key_values, use_cache) and
// StreamMonitoring of splitlearn-comm: requests with them are refused with Unimplemented.
//
// # Health
//
// HealthCheck says "ok" where Compute would work: the function was set up, says so itself where it is a Checker, and,
// for functions of an owner, the owner answers. grpc.health.v1 says the same, and its Watch hears of changes within a
// second.
package compute
