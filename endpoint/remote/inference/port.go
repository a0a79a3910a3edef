package inference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// portKind is the representation of a function's value in the protocol.
type portKind uint8

const (
	tensorPort portKind = iota // a *tensor.Tensor
	scalarPort                 // a number, truth value, text or bytes, with shape [1]
	listPort                   // a list of scalars, with one dimension
)

// port is an input or output of a model: a field of the function's argument or result, or the whole value.
type port struct {
	// name is the name of the field; the names of nested structs are joined with dots. path contains its parts and is
	// empty if the port is the whole value.
	name string
	path []string
	kind portKind
	// datatype is empty if the function does not declare it, as for tensors. A size of -1 matches any size.
	datatype string
	shape    []int64
	shaped   bool // the function declares the shape
	optional bool
	raw      bool // the values are byte strings, not texts
}

// Names of an input and output that are not fields.
const (
	wholeInput  = "input"
	wholeOutput = "output"
)

// byteString is the type of a byte string.
const byteString = "[]uint8"

// scalarTypes maps Go types, as spelled in EndpointInfo, to datatypes.
var scalarTypes = map[string]string{
	"bool": "BOOL", "string": bytesType, byteString: bytesType,
	"int": "INT64", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
	"uint": "UINT64", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
	"float32": "FP32", "float64": "FP64", "time.Duration": "INT64",
}

// portOf describes a value by its type. ok is false if the protocol has no tensor for the type.
func portOf(name, typeName string, declared *endpoint.TensorSpec, path []string) (p port, ok bool) {
	p = port{name: name, path: path}
	t := strings.TrimLeft(typeName, "*")
	if t == "tensor.Tensor" || declared != nil {
		p.kind, p.shape = tensorPort, []int64{-1}
		if declared != nil {
			p.declare(declared)
		}
		return p, true
	}
	if d, known := scalarTypes[t]; known {
		p.kind, p.datatype, p.shape, p.raw = scalarPort, d, []int64{1}, t == byteString
		return p, true
	}
	if element, isList := strings.CutPrefix(t, "[]"); isList {
		element = strings.TrimLeft(element, "*")
		if d, known := scalarTypes[element]; known {
			p.kind, p.datatype, p.shape, p.raw = listPort, d, []int64{-1}, element == byteString
			return p, true
		}
		return p, false
	}
	// A named type. If it has no fields, its values are numbers or texts, and the client chooses.
	if strings.Contains(t, ".") && !strings.ContainsAny(t, "[({ ") && t != "module.StateDict" {
		p.kind, p.shape = scalarPort, []int64{1}
		return p, true
	}
	return p, false
}

// equal reports whether both describe the same value.
func (p port) equal(other port) bool {
	return p.name == other.name && slices.Equal(p.path, other.path) && p.kind == other.kind && p.datatype == other.datatype &&
		slices.Equal(p.shape, other.shape) && p.shaped == other.shaped && p.optional == other.optional && p.raw == other.raw
}

// declare sets the datatype and shape that the function declares. A dtype without a datatype in the protocol is left out:
// requests for it fail with the reason.
func (p *port) declare(spec *endpoint.TensorSpec) {
	if d, err := datatypeOf(spec.DType); spec.DType != 0 && err == nil {
		p.datatype = d
	}
	if spec.Shape != nil {
		p.shape, p.shaped = spec.Shape, true
	}
}

// checkDeclared returns an error for a tensor that differs from the declaration of the function.
func (p *port) checkDeclared(in inputTensor) error {
	if p.datatype != "" && p.datatype != in.datatype {
		return fmt.Errorf("%w: inference input data-type is '%s', model expects '%s'", ErrInvalid, clip(in.datatype), p.datatype)
	}
	if !p.shaped {
		return nil
	}
	same := len(in.shape) == len(p.shape)
	for i := range p.shape {
		same = same && (p.shape[i] == -1 || p.shape[i] == in.shape[i])
	}
	if !same {
		return fmt.Errorf("%w: unexpected shape. Expected %v, got %v", ErrInvalid, p.shape, in.shape)
	}
	return nil
}

// ports lists the values of a struct. missing lists the required fields that the protocol cannot represent.
func ports(fields []endpoint.FieldInfo, path []string, optional bool) (list []port, missing []string) {
	for _, f := range fields {
		at := append(path[:len(path):len(path)], f.Name)
		name := strings.Join(at, ".")
		mayLack := optional || f.Optional
		t := strings.TrimLeft(f.Type, "*")
		if len(f.Fields) > 0 && !strings.HasPrefix(t, "[") && !strings.HasPrefix(t, "map[") {
			inner, lacks := ports(f.Fields, at, mayLack)
			list, missing = append(list, inner...), append(missing, lacks...)
			continue
		}
		p, ok := portOf(name, f.Type, f.Tensor, at)
		switch {
		case ok:
			p.optional = mayLack
			list = append(list, p)
		case !mayLack:
			missing = append(missing, name+" "+f.Type)
		}
	}
	return list, missing
}

// portsOf lists the values of an argument or a result.
func portsOf(whole, typeName string, declared *endpoint.TensorSpec, fields []endpoint.FieldInfo) (list []port, missing []string) {
	t := strings.TrimLeft(typeName, "*")
	if len(fields) > 0 && !strings.HasPrefix(t, "[") && !strings.HasPrefix(t, "map[") {
		return ports(fields, nil, false)
	}
	if t == "struct {}" || t == "struct" {
		return nil, nil
	}
	if p, ok := portOf(whole, typeName, declared, nil); ok && len(fields) == 0 {
		return []port{p}, nil
	}
	return nil, []string{typeName}
}

// hasTensor reports whether one of the ports accepts more than one value.
func hasTensor(list []port) bool {
	for _, p := range list {
		if p.kind != scalarPort {
			return true
		}
	}
	return false
}
