// Package torchpb contains the generated code of torch.proto, the wire format of kpu.torch.Service.
package torchpb

//go:generate protoc -I ../../../.. --go_out=../../../.. --go_opt=paths=source_relative --go-grpc_out=../../../.. --go-grpc_opt=paths=source_relative endpoint/remote/stream/torchpb/torch.proto
