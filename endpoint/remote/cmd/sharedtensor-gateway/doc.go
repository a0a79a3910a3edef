// Command sharedtensor-gateway lets an owner of tensors be used from other hosts.
//
//	sharedtensor serve silero=model.safetensors &
//	sharedtensor-gateway serve
//	curl -s localhost:2537/jsonrpc -d '{"jsonrpc":"2.0","id":1,"method":"list_models"}' -H 'Content-Type: application/json'
//
// It attaches to the owner by its socket as any other process of the host, and serves JSON-RPC and model files over
// HTTP, tensors and remote compute over gRPC, functions by the Open Inference Protocol over both, bins over NATS, and a
// page that shows what is going on at http://localhost:2537/.
package main
