// Package models serves an owner's models as files over HTTP.
//
//	GET    /v1/models                                  list the published models
//	GET    /v1/models/NAME                             the versions and holders of a model; DELETE withdraws it
//	GET    /v1/models/NAME[@VERSION]/manifest          list the tensors; ?digests adds the SHA-256 of each
//	GET    /v1/models/NAME[@VERSION]/tensors/TENSOR    the bytes of a tensor, row-major and little-endian, with Range and an ETag
//	GET    /v1/models/NAME[@VERSION]/model.safetensors all tensors as one file, with Range and an ETag
//	PUT    /v1/models/NAME/model.safetensors           publish a file as the next version
//	GET    /v1/models/NAME/changes                     wait for a version other than ?server=ID&version=N; 204 if there is none
//	POST   /v1/models/NAME[@VERSION]/leases            keep a version for ?seconds=60; POST or DELETE /v1/leases/ID renews or ends the lease
//	GET    /v1/models/NAME[@VERSION]/deltas/TENSOR     the change since the version of ?lease=ID, whose tensor has the SHA-256 &base=HEX
//
// Errors are JSON: {"error": {"code": …, "message": …}} with the codes of package jsonrpc.
//
// See [Component] for its use in the gateway.
package models
