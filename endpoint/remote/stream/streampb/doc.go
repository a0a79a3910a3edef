// Package streampb contains the generated code of stream.proto, the wire format of sharedtensor.stream.v1.TensorStream.
package streampb

//go:generate protoc -I ../../../.. --go_out=../../../.. --go_opt=paths=source_relative --go-grpc_out=../../../.. --go-grpc_opt=paths=source_relative endpoint/remote/stream/streampb/stream.proto
