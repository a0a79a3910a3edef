package inference

import (
	"fmt"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// bytesType is the datatype of texts and other byte strings. Each is preceded by its length in 4 bytes, little-endian.
const bytesType = "BYTES"

// datatype is an element type of the protocol.
type datatype struct {
	name   string
	dtype  tensor.DType
	config pb.DataType
}

var datatypes = []datatype{
	{"BOOL", tensor.Bool, pb.DataType_TYPE_BOOL},
	{"UINT8", tensor.Uint8, pb.DataType_TYPE_UINT8},
	{"UINT16", tensor.Uint16, pb.DataType_TYPE_UINT16},
	{"UINT32", tensor.Uint32, pb.DataType_TYPE_UINT32},
	{"UINT64", tensor.Uint64, pb.DataType_TYPE_UINT64},
	{"INT8", tensor.Int8, pb.DataType_TYPE_INT8},
	{"INT16", tensor.Int16, pb.DataType_TYPE_INT16},
	{"INT32", tensor.Int32, pb.DataType_TYPE_INT32},
	{"INT64", tensor.Int64, pb.DataType_TYPE_INT64},
	{"FP16", tensor.Float16, pb.DataType_TYPE_FP16},
	{"FP32", tensor.Float32, pb.DataType_TYPE_FP32},
	{"FP64", tensor.Float64, pb.DataType_TYPE_FP64},
	{"BF16", tensor.BFloat16, pb.DataType_TYPE_BF16},
}

// dtypeOf returns the dtype of a datatype other than BYTES.
func dtypeOf(name string) (tensor.DType, error) {
	for _, d := range datatypes {
		if d.name == name {
			return d.dtype, nil
		}
	}
	if name == bytesType {
		return 0, fmt.Errorf("%w: a tensor cannot have elements of datatype BYTES", ErrInvalid)
	}
	return 0, fmt.Errorf("%w: the protocol has no datatype %q", ErrInvalid, clip(name))
}

// datatypeOf returns the datatype of a dtype.
func datatypeOf(dt tensor.DType) (string, error) {
	for _, d := range datatypes {
		if d.dtype == dt {
			return d.name, nil
		}
	}
	return "", fmt.Errorf("%w: the protocol has no datatype for elements of %v", ErrNotServed, dt)
}

// configType returns a datatype as it appears in a model's configuration.
func configType(name string) pb.DataType {
	if name == bytesType {
		return pb.DataType_TYPE_STRING
	}
	for _, d := range datatypes {
		if d.name == name {
			return d.config
		}
	}
	return pb.DataType_TYPE_INVALID
}

// elementCount returns the number of elements of a shape. The error is ErrInvalid for an invalid shape.
func elementCount(shape []int64) (int64, error) {
	n, err := tensor.Shape(shape).NumElements()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return n, nil
}

// clip shortens text received from a peer for use in an error.
func clip(text string) string {
	const most = 120
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
