// Package inference serves functions of an owner by the Open Inference Protocol, version 2, over gRPC and REST, as
// KServe and Triton do: their clients are clients of the gateway.
//
//	sharedtensor-gateway serve --allow-client-shm
//
//	import tritonclient.grpc as triton
//	client = triton.InferenceServerClient("localhost:50051")
//	x = triton.InferInput("x", [4], "FP32")
//	x.set_data_from_numpy(numpy.ones(4, "float32"))
//	client.infer("scale", [x], parameters={"factor": 3.0}).as_numpy("output")
//
// # What a model is
//
// Every function of the owner, or of the program that embeds the gateway, whose argument has a tensor or a list is a
// model.
//
//	*tensor.Tensor                 any datatype and shape
//	[]T of numbers, truth values,  one dimension; []string is BYTES
//	texts and bytes
//	a number, truth value, text,   an input of shape [1], or a parameter of the request of the same name
//	[]byte
//	a struct                       its fields, as "outer.inner"
//
// The inputs are the fields of the argument, by their names on the wire, and optional as they are there; an argument
// that is itself the tensor is "input". The outputs are the fields of the result, and a result that is no struct is
// "output". Functions do not say which datatype and shape their tensors have, so the metadata of those is an empty
// datatype and the shape [-1]. What the protocol has no tensor for is left out where it is optional; a function that
// needs it is in the index of the repository with the reason for which it is not ready.
//
// A function whose results come one by one is a decoupled model, for ModelStreamInfer.
//
// # Memory of arguments
//
// The tensors of an argument are in memory of an earlier request as soon as nobody has that any more, in this process or
// another. A function that keeps a tensor of its argument keeps its memory with it, and closes it; one that keeps a
// slice of the elements of a tensor that is closed sees those of others. A function with [endpoint.WritableArguments]
// gets new memory.
//
// # Versions
//
// Where the owner has published a state dict under the function's name, its versions are those of the model, and the
// current one is what an empty version means. A function with an integer field "version" gets the version that was
// asked for; one without runs on the current version only. All other functions are version 1.
//
// # Repository
//
// Unloading a model makes the gateway refuse requests for it, until it is loaded; nothing changes at the owner. Senders
// that may only read may not do it.
//
// # Shared memory
//
// With --allow-client-shm, clients that come over loopback or a Unix socket register memory of shm_open, and of
// cudaMalloc where the gateway has the device. Such memory is the client's, who may change it or take it away at any
// time: it is copied once, by system calls, to memory that the owner maps, and results are copied back in the same way.
package inference
