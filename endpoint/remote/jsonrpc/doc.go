// Package jsonrpc serves an owner's functions, tasks and models over HTTP: control by JSON-RPC 2.0, tensors as files.
//
//	POST /jsonrpc                                    {"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"transform","kwargs":{"scale":2}}}
//	GET  /v1/models                                  list the published models
//	GET  /v1/models/NAME[@VERSION]/manifest          list the tensors; ?digests adds the SHA-256 of each
//	GET  /v1/models/NAME[@VERSION]/tensors/TENSOR    the bytes of a tensor, row-major and little-endian, with Range and an ETag
//	GET  /v1/models/NAME[@VERSION]/model.safetensors all tensors as one file, with Range and an ETag
//	PUT  /v1/models/NAME/model.safetensors           publish a file as the next version
//	GET  /v1/models/NAME/changes                     wait for a version other than ?server=ID&version=N; 204 if there is none
//	POST /v1/models/NAME[@VERSION]/leases            keep a version for ?seconds=60; POST or DELETE /v1/leases/ID renews or ends the lease
//	GET  /v1/models/NAME[@VERSION]/deltas/TENSOR     the change since the version of ?lease=ID, whose tensor has the SHA-256 &base=HEX
//	GET  /v1/results/ID                              the bytes of a result tensor, until it expires
//
// See [Component] for its use in the gateway.
//
// # Tensors in JSON
//
// A tensor is an object with the single key "$tensor":
//
//	{"$tensor": {"dtype": "float32", "shape": [2, 2], "data": "<base64 of its bytes, row-major, little-endian>"}}
//	{"$tensor": {"dtype": "float32", "values": [[1, 2], [3, 4]]}}
//	{"$tensor": {"model": "llm", "name": "lm_head.weight", "version": 3}}
//	{"$tensor": {"dtype": "float32", "shape": [2, 2], "url": "https://…", "sha256": "<hex>"}}
//
// Arguments may use any of these forms. Results use the first form, or the last with a URL of this gateway if the
// caller sets "tensors": "url". All tensors of a model, and state dicts in results, are {"$state_dict": …}. Bytes are
// {"$bytes": "<base64>"}. Floating-point numbers that JSON cannot represent are {"$float": "NaN"}, "Infinity" or
// "-Infinity".
//
// # Outcome of a failed call
//
// A call runs at most once. If the owner leaves or the deadline expires after a call was sent, the function may have
// run, and the error's data has "outcome": "unknown". The outcome is "failed" if the function returned the error, and
// "not_run" otherwise.
package jsonrpc
