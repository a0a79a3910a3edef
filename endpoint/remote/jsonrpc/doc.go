// Package jsonrpc serves an owner's functions and tasks over JSON-RPC 2.0. Package models serves tensors as files.
//
//	POST /jsonrpc                                    {"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"transform","kwargs":{"scale":2}}}
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
