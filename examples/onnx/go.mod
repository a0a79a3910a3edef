module example.com/onnx

go 1.25.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/sharedtensor/sharedtensor v0.0.0
	github.com/stretchr/testify v1.12.1
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/fxamacker/cbor/v2 v2.9.6 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/sharedtensor/sharedtensor => ../..
