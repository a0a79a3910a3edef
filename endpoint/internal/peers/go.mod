module github.com/sharedtensor/sharedtensor/endpoint/internal/peers

go 1.25.0

replace github.com/sharedtensor/sharedtensor => ../../..

require (
	github.com/fxamacker/cbor/v2 v2.9.6
	github.com/sharedtensor/sharedtensor v0.0.0-00010101000000-000000000000
	github.com/stretchr/testify v1.12.1
	google.golang.org/grpc v1.84.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/x448/float16 v0.8.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260706201446-f0a921348800 // indirect
)
