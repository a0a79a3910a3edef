//go:build linux

package serve

import (
	"bytes"
	"fmt"
	"io"

	"example.com/onnx/graph"
	"example.com/onnx/ort"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// EncodeTensors returns tensors as a safetensors file, which is the body of requests and responses.
func EncodeTensors(tensors map[string]ort.Tensor) ([]byte, error) {
	infos := make([]safetensors.TensorInfo, 0, len(tensors))
	for name, t := range tensors {
		infos = append(infos, safetensors.TensorInfo{Name: name, DType: graph.DTypeOf(int32(t.DType)), Shape: t.Shape})
	}
	header, err := safetensors.NewHeader(infos, nil)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = safetensors.Write(&b, header, func(w io.Writer, t safetensors.TensorInfo) error {
		_, err := w.Write(tensors[t.Name].Data)
		return err
	})
	return b.Bytes(), err
}

// DecodeTensors returns the tensors of a safetensors file as views of its bytes.
func DecodeTensors(body []byte) (map[string]ort.Tensor, error) {
	header, err := safetensors.ReadHeader(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInput, err)
	}
	tensors := make(map[string]ort.Tensor, len(header.Tensors))
	for _, t := range header.Tensors {
		dtype := graph.TypeOf(t.DType)
		if dtype == 0 {
			return nil, fmt.Errorf("%w: %q is %v, which ONNX lacks", errInput, t.Name, t.DType)
		}
		data := body[header.DataOffset+t.Begin : header.DataOffset+t.End]
		tensors[t.Name] = ort.Tensor{DType: ort.DType(dtype), Shape: t.Shape, Data: data}
	}
	return tensors, nil
}
