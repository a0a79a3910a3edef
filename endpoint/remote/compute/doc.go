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
// # Wire format
//
// The service is splitlearn.comm.ComputeService. Python clients and servers of splitlearn-comm are compatible: elements
// are float32, row-major and little-endian, with their shape. Entries of a message's metadata describe the extensions:
//
//	dtype               element type of data, by PyTorch's name; default float32
//	compression         compression of data: "zlib" or "zstd"
//	accept-dtype        "any": the response may have the type of the result; otherwise it is converted to float32
//	accept-compression  compressions allowed for the response, such as "zstd,zlib"
//	traceparent         W3C trace context, in the metadata of the call itself
//
// If a request's data is compressed with zlib but has no compression entry, as by splitlearn-comm's
// CompressedTensorCodec, the response is compressed in the same way. A client sends other types and compressed data
// only to servers with "protocol": Protocol in custom_info.
//
// A client can also use gRPC's compression of whole messages with gzip or deflate. Compression is skipped if it would
// not pay: below 4 KiB, if a sample of the message does not shrink by a tenth, in ComputeStream, and between processes
// of one host.
//
// ComputeStream carries tensors that are too large for one message, in both directions. Clients use it above
// ClientOptions.StreamFrom.
//
// # Not supported
//
// splitlearn-comm's training (forward_id, training_mode, ComputeBackward), generation caches (past_key_values,
// use_cache) and StreamMonitoring. Requests that use them are refused with Unimplemented.
//
// # Health
//
// HealthCheck returns "ok" if Compute would work: the function was set up, its Check succeeds if it is a Checker, and,
// for functions of an owner, the owner answers. grpc.health.v1 returns the same status, and its Watch reports changes
// within a second.
package compute
