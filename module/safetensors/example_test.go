package safetensors_test

import (
	"bytes"
	"fmt"
	"io"
	"log"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A file is written from a header and a source of each tensor's bytes, and its header is read without them.
func Example() {
	header, err := safetensors.NewHeader([]safetensors.TensorInfo{
		{Name: "bias", DType: tensor.BFloat16, Shape: tensor.Shape{3}},
		{Name: "weight", DType: tensor.Float32, Shape: tensor.Shape{2, 3}},
	}, map[string]string{"format": "pt"})
	if err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	zeros := func(w io.Writer, t safetensors.TensorInfo) error {
		_, err := w.Write(make([]byte, t.Bytes()))
		return err
	}
	if err := safetensors.Write(&file, header, zeros); err != nil {
		log.Fatal(err)
	}
	read, err := safetensors.ReadHeader(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range read.Tensors {
		fmt.Println(t.Name, t.DType, t.Shape, t.Bytes(), "bytes")
	}
	fmt.Println(read.Metadata)
	// Output:
	// weight float32 [2, 3] 24 bytes
	// bias bfloat16 [3] 6 bytes
	// map[format:pt]
}
