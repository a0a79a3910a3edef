// Package jsonrpc serves an owner's functions, tasks and models over HTTP: control by JSON-RPC 2.0, tensors as files.
//
//	POST /jsonrpc                                    {"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"transform","kwargs":{"scale":2}}}
//	GET  /v1/models                                  what is published
//	GET  /v1/models/NAME[@VERSION]/manifest          its tensors; with ?digests the SHA-256 of each
//	GET  /v1/models/NAME[@VERSION]/tensors/TENSOR    the bytes of one, row-major and little-endian, with Range and an ETag
//	GET  /v1/models/NAME[@VERSION]/model.safetensors all of them as one file, with Range and an ETag
//	PUT  /v1/models/NAME/model.safetensors           publish a file as the next version
//	GET  /v1/models/NAME/changes                     answers when the newest version is another than ?server=ID&version=N, or with 204
//	POST /v1/models/NAME[@VERSION]/leases            keep a version for ?seconds=60; POST and DELETE /v1/leases/ID renew and end that
//	GET  /v1/models/NAME[@VERSION]/deltas/TENSOR     what changed since the version of ?lease=ID, whose tensor has the SHA-256 &base=HEX
//	GET  /v1/results/ID                              the bytes of a tensor of a result, for a while
//
// A component of the gateway; see Component.
//
// # Tensors in JSON
//
// A tensor is an object with the one key "$tensor":
//
//	{"$tensor": {"dtype": "float32", "shape": [2, 2], "data": "<base64 of its bytes, row-major, little-endian>"}}
//	{"$tensor": {"dtype": "float32", "values": [[1, 2], [3, 4]]}}
//	{"$tensor": {"model": "llm", "name": "lm_head.weight", "version": 3}}
//	{"$tensor": {"dtype": "float32", "shape": [2, 2], "url": "https://…", "sha256": "<hex>"}}
//
// Arguments may have any of these. Results have the first, or the last where the caller asks for "tensors": "url": then
// the url is one of this gateway. All tensors of a model, and state dicts in results, are {"$state_dict": …}; bytes are
// {"$bytes": "<base64>"}, and floating-point numbers that JSON does not have are {"$float": "NaN"}, "Infinity" or
// "-Infinity".
//
// # What a caller knows
//
// A call happens at most once. Where the owner went away, or the time was over, after a call was sent, the function may
// have run: the error's data says "outcome": "unknown". Otherwise it says "not_run" or, for an error that the function
// returned, "failed".
package jsonrpc
