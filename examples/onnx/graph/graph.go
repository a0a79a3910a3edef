// Package graph separates the weights of an ONNX model from its graph. The graph keeps external initializers, so any ONNX
// runtime can load the two files together. The weights are a safetensors file.
//
// It reads the protobuf encoding directly: tensors are views of the model's bytes, and all other fields are copied
// unchanged. Lengths, shapes and names are checked before memory is allocated.
package graph

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors about a model.
var (
	// ErrFormat means that the bytes are not an ONNX model.
	ErrFormat = errors.New("not a valid ONNX model")
	// ErrSplit means that the model already has external weights.
	ErrSplit = errors.New("the model already has external weights")
	// ErrNested means that a tensor in a node, a nested graph or a function is in a file.
	ErrNested = errors.New("a tensor that is not an initializer of the model's graph is in a file")
	// ErrTensor means that a tensor's shape, type or length is invalid.
	ErrTensor = errors.New("bad tensor")
)

// Field numbers of onnx.proto that this package reads.
const (
	modelVersion protowire.Number = 1
	modelGraph   protowire.Number = 7

	graphNode        protowire.Number = 1
	graphInitializer protowire.Number = 5
	graphOutput      protowire.Number = 12

	valueName protowire.Number = 1

	nodeOutput    protowire.Number = 2
	nodeOpType    protowire.Number = 4
	nodeAttribute protowire.Number = 5
	nodeDomain    protowire.Number = 7

	attributeName   protowire.Number = 1
	attributeTensor protowire.Number = 5

	tensorDims         protowire.Number = 1
	tensorType         protowire.Number = 2
	tensorSegment      protowire.Number = 3
	tensorFloats       protowire.Number = 4
	tensorInt32s       protowire.Number = 5
	tensorStrings      protowire.Number = 6
	tensorInt64s       protowire.Number = 7
	tensorName         protowire.Number = 8
	tensorRaw          protowire.Number = 9
	tensorDoubles      protowire.Number = 10
	tensorUint64s      protowire.Number = 11
	tensorExternalData protowire.Number = 13
	tensorLocation     protowire.Number = 14

	entryKey   protowire.Number = 1
	entryValue protowire.Number = 2
)

// external is TensorProto.DataLocation.EXTERNAL.
const external = 1

// dtypes maps TensorProto.DataType to the data types that safetensors files have.
var dtypes = map[int32]tensor.DType{
	1: tensor.Float32, 2: tensor.Uint8, 3: tensor.Int8, 4: tensor.Uint16, 5: tensor.Int16, 6: tensor.Int32, 7: tensor.Int64,
	9: tensor.Bool, 10: tensor.Float16, 11: tensor.Float64, 12: tensor.Uint32, 13: tensor.Uint64, 16: tensor.BFloat16,
}

// Tensor describes an initializer.
type Tensor struct {
	Name string
	// Type is the number of its element type in ONNX, and DType the same type here; it is invalid if safetensors has none.
	Type  int32
	DType tensor.DType
	Shape []int64
	// Data is a view of the model's bytes in the layout of a safetensors file, or nil if the tensor has another encoding.
	Data []byte
	// External reports whether the bytes are outside the graph, in the file Location.
	External bool
	Location string
}

// field is one field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	raw    []byte // tag and value
	value  []byte // content of a length-delimited field
	varint uint64
}

// walk calls visit for each field of a message until it returns an error.
func walk(message []byte, visit func(f field) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrFormat, protowire.ParseError(n))
		}
		f := field{number: number, kind: kind}
		rest := message[n:]
		var m int
		switch kind {
		case protowire.VarintType:
			f.varint, m = protowire.ConsumeVarint(rest)
		case protowire.BytesType:
			f.value, m = protowire.ConsumeBytes(rest)
		case protowire.StartGroupType, protowire.EndGroupType: // ONNX has no groups
			return fmt.Errorf("%w: field %d is a group", ErrFormat, number)
		default:
			m = protowire.ConsumeFieldValue(number, kind, rest)
		}
		if m < 0 {
			return fmt.Errorf("%w: field %d: %w", ErrFormat, number, protowire.ParseError(m))
		}
		f.raw = message[:n+m]
		message = rest[m:]
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

// is reports whether the field is a message, text or bytes with that number.
func (f field) is(number protowire.Number) bool {
	return f.number == number && f.kind == protowire.BytesType
}

// parseTensor reads a TensorProto.
func parseTensor(message []byte) (Tensor, error) {
	var t Tensor
	var data [][]byte // fields that contain elements
	var floats, doubles, opaque bool
	err := walk(message, func(f field) error {
		switch f.number {
		case tensorDims:
			return t.addDims(f)
		case tensorType:
			if f.kind != protowire.VarintType || f.varint > math.MaxInt32 {
				return fmt.Errorf("%w: bad element type", ErrFormat)
			}
			t.Type = int32(f.varint)
		case tensorName:
			t.Name = string(f.value)
		case tensorLocation:
			t.External = t.External || f.varint == external
		case tensorExternalData:
			t.External = true
			return t.setLocation(f.value)
		case tensorRaw:
			data = append(data, f.value)
		case tensorFloats, tensorDoubles: // packed: the elements in little-endian order
			data = append(data, f.value)
			floats, doubles = floats || f.number == tensorFloats, doubles || f.number == tensorDoubles
			opaque = opaque || f.kind != protowire.BytesType
		case tensorInt32s, tensorInt64s, tensorUint64s, tensorStrings, tensorSegment:
			opaque = true
		}
		return nil
	})
	if err != nil {
		return Tensor{}, err
	}
	t.DType = dtypes[t.Type]
	opaque = opaque || floats && t.DType != tensor.Float32 || doubles && t.DType != tensor.Float64
	if !t.DType.Valid() || opaque || t.External {
		return t, nil
	}
	return t, t.setData(data)
}

// addDims adds one field of dimensions, packed or not.
func (t *Tensor) addDims(f field) error {
	packed := f.value
	if f.kind == protowire.VarintType {
		packed = protowire.AppendVarint(nil, f.varint)
	}
	for len(packed) > 0 {
		d, n := protowire.ConsumeVarint(packed)
		if n < 0 || d > math.MaxInt64 {
			return fmt.Errorf("%w: bad dimension", ErrTensor)
		}
		if len(t.Shape) == tensor.MaxRank {
			return fmt.Errorf("%w: more than %d dimensions", ErrTensor, tensor.MaxRank)
		}
		t.Shape = append(t.Shape, int64(d))
		packed = packed[n:]
	}
	return nil
}

// setLocation reads one entry of the external data.
func (t *Tensor) setLocation(entry []byte) error {
	var key, value string
	err := walk(entry, func(f field) error {
		switch {
		case f.is(entryKey):
			key = string(f.value)
		case f.is(entryValue):
			value = string(f.value)
		}
		return nil
	})
	if key == "location" {
		t.Location = value
	}
	return err
}

// setData checks that one field contains exactly the elements.
func (t *Tensor) setData(fields [][]byte) error {
	want, err := tensor.Spec{DType: t.DType, Shape: t.Shape}.ByteLen()
	if err != nil {
		return fmt.Errorf("%w %q: %w", ErrTensor, t.Name, err)
	}
	var data []byte
	for _, f := range fields {
		if len(f) > 0 && len(data) > 0 {
			return fmt.Errorf("%w %q: elements in two fields", ErrTensor, t.Name)
		}
		if len(f) > 0 {
			data = f
		}
	}
	if int64(len(data)) != want {
		return fmt.Errorf("%w %q: %d bytes for shape %v of %v, which needs %d", ErrTensor, t.Name, len(data), t.Shape, t.DType, want)
	}
	t.Data = data
	return nil
}

// info returns the tensor as a safetensors file describes it.
func (t *Tensor) info() safetensors.TensorInfo {
	return safetensors.TensorInfo{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// TypeOf returns the number of a data type in ONNX, or 0 if it has none here.
func TypeOf(dt tensor.DType) int32 {
	for number, known := range dtypes {
		if known == dt {
			return number
		}
	}
	return 0
}

// DTypeOf returns the data type of an ONNX element type. It is invalid if safetensors files lack it.
func DTypeOf(number int32) tensor.DType { return dtypes[number] }
