// Command sharedtensor-gateway makes an owner of tensors available to other hosts.
//
//	sharedtensor serve silero=model.safetensors &
//	sharedtensor-gateway serve
//	curl -s localhost:2537/jsonrpc -d '{"jsonrpc":"2.0","id":1,"method":"list_models"}' -H 'Content-Type: application/json'
//
// It attaches to the owner's socket like any other process of the host. It serves JSON-RPC and model files over HTTP,
// tensors and remote compute over gRPC, functions by the Open Inference Protocol over both, and bins over NATS. A
// status page is at http://localhost:2537/.
package main
