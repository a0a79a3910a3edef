// Package inference serves an owner's functions over the Open Inference Protocol, version 2, with gRPC and REST.
// Clients of KServe and Triton work with the gateway.
//
//	sharedtensor-gateway serve --allow-client-shm
//
//	import tritonclient.grpc as triton
//	client = triton.InferenceServerClient("localhost:50051")
//	x = triton.InferInput("x", [4], "FP32")
//	x.set_data_from_numpy(numpy.ones(4, "float32"))
//	client.infer("scale", [x], parameters={"factor": 3.0}).as_numpy("output")
//
// # Models
//
// A function of the owner, or of the program that embeds the gateway, is a model if its argument contains a tensor or a
// list.
//
//	*tensor.Tensor                 any datatype and shape
//	[]T of numbers, truth values,  one dimension, or [1,N], in the results too; []string is BYTES
//	texts and bytes
//	a number, truth value, text,   an input of shape [1], or a parameter of the request of the same name
//	[]byte
//	a struct                       its fields, as "outer.inner"
//
// The inputs are the fields of the argument under their wire names. Optional fields are optional inputs. An argument
// that is a tensor itself is the input "input". The outputs are the fields of the result; a result that is not a struct
// is the output "output". A function declares the datatype and shape of a tensor with a tag or with
// [endpoint.ArgumentTensor] and [endpoint.ResultTensor]. Undeclared tensors have an empty datatype and the shape [-1].
// Optional fields that the protocol cannot represent are omitted. A function that requires
// such a field is listed in the repository index as not ready, with the reason.
//
// A function that returns a sequence of results is a decoupled model for ModelStreamInfer.
//
// Requests of a function with [endpoint.Batch] are joined along the first dimension of their tensors.
//
// # Memory of arguments
//
// The memory of arguments is reused when no process uses it any longer. A function that keeps a tensor
// of its argument thereby keeps the memory, and must close the tensor later. A slice of elements must not be used after
// its tensor is closed, because it would show data of other requests. A function with [endpoint.WritableArguments] gets
// new memory.
//
// # Versions
//
// If the owner has published a state dict under the function's name, the function has the versions of that model, and
// an empty version means the current one. A function with an integer field "version" receives the requested version. A
// function without that field runs on the current version only. All other functions have version 1.
//
// # Repository
//
// If a client unloads a model, the gateway refuses requests for it until a client loads it. This changes nothing at the
// owner. Senders with read-only access cannot load or unload models.
//
// # Shared memory
//
// With --allow-client-shm, clients on loopback addresses and Unix sockets can register memory of shm_open, and memory
// of cudaMalloc if the gateway has the device. The client owns this memory and can change or remove it at any time. The
// gateway therefore copies it once, with system calls, to memory that the owner maps, and copies results back in the
// same way.
package inference
