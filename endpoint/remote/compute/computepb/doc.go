// Package computepb is the generated code of compute.proto, the wire format of splitlearn.comm.ComputeService.
package computepb

//go:generate protoc -I ../../../.. --go_out=../../../.. --go_opt=paths=source_relative --go-grpc_out=../../../.. --go-grpc_opt=paths=source_relative endpoint/remote/compute/computepb/compute.proto
