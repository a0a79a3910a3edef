// Package inferencepb is the Open Inference Protocol over gRPC, generated from inference.proto.
package inferencepb

//go:generate protoc -I ../../../.. --go_out=../../../.. --go_opt=paths=source_relative --go-grpc_out=../../../.. --go-grpc_opt=paths=source_relative endpoint/remote/inference/inferencepb/inference.proto
