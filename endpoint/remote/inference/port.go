package inference

import (
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// portKind says how a value of a function is told in the protocol.
type portKind uint8

const (
	tensorPort portKind = iota // a *tensor.Tensor
	scalarPort                 // a number, a truth value, a text or bytes: shape [1]
	listPort                   // a list of those: one dimension
)

// port is an input or an output of a model: a field of the function's argument or result, or the whole of it.
type port struct {
	// name is the field's; those of structs in structs are joined by dots. path is the same in parts, empty where the
	// port is the whole.
	name string
	path []string
	kind portKind
	// datatype is empty where the function does not say, as of tensors. A size of -1 is any.
	datatype string
	shape    []int64
	optional bool
}

// The names of inputs and outputs that are no fields.
const (
	wholeInput  = "input"
	wholeOutput = "output"
)

// scalarTypes are the datatypes of Go types as EndpointInfo spells them.
var scalarTypes = map[string]string{
	"bool": "BOOL", "string": bytesType, "[]uint8": bytesType,
	"int": "INT64", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
	"uint": "UINT64", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
	"float32": "FP32", "float64": "FP64", "time.Duration": "INT64",
}

// portOf describes a value by its type; ok is false for a type that the protocol has no tensor for.
func portOf(name, typeName string, path []string) (p port, ok bool) {
	p = port{name: name, path: path}
	t := strings.TrimLeft(typeName, "*")
	if t == "tensor.Tensor" {
		p.kind, p.shape = tensorPort, []int64{-1}
		return p, true
	}
	if d, known := scalarTypes[t]; known {
		p.kind, p.datatype, p.shape = scalarPort, d, []int64{1}
		return p, true
	}
	if element, isList := strings.CutPrefix(t, "[]"); isList {
		if d, known := scalarTypes[strings.TrimLeft(element, "*")]; known {
			p.kind, p.datatype, p.shape = listPort, d, []int64{-1}
			return p, true
		}
		return p, false
	}
	// A type with a name, whose values are numbers or texts if it has no fields. The client says which.
	if strings.Contains(t, ".") && !strings.ContainsAny(t, "[({ ") && t != "module.StateDict" {
		p.kind, p.shape = scalarPort, []int64{1}
		return p, true
	}
	return p, false
}

// ports lists the values of a struct. missing are the fields that the protocol has nothing for and that cannot be left
// out.
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
		p, ok := portOf(name, f.Type, at)
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
func portsOf(whole, typeName string, fields []endpoint.FieldInfo) (list []port, missing []string) {
	t := strings.TrimLeft(typeName, "*")
	if len(fields) > 0 && !strings.HasPrefix(t, "[") && !strings.HasPrefix(t, "map[") {
		return ports(fields, nil, false)
	}
	if t == "struct {}" || t == "struct" {
		return nil, nil
	}
	if p, ok := portOf(whole, typeName, nil); ok && len(fields) == 0 {
		return []port{p}, nil
	}
	return nil, []string{typeName}
}

// hasTensor reports whether one of the ports takes more than one value.
func hasTensor(list []port) bool {
	for _, p := range list {
		if p.kind != scalarPort {
			return true
		}
	}
	return false
}
