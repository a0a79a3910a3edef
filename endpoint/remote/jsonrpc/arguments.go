package jsonrpc

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/jsonvalue"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
)

// callParams holds the parameters of a call.
type callParams struct {
	// Name is the name of the function.
	Name string `json:"name,omitempty"`
	// Args holds positional arguments: the fields of the argument struct in order, or the single value that the
	// function takes. Kwargs holds arguments by name.
	Args   json.RawMessage `json:"args,omitempty"`
	Kwargs json.RawMessage `json:"kwargs,omitempty"`
	// Timeout limits the call, in seconds. 0 means no limit.
	Timeout float64 `json:"timeout,omitempty"`
	// Tensors selects how tensors in the result are returned: "inline" (the default) or "url".
	Tensors string `json:"tensors,omitempty"`
	// Function and FunctionPath are synonyms of Name that shared-tensor 0.1 clients send.
	Function     string `json:"function,omitempty"`
	FunctionPath string `json:"function_path,omitempty"`
	// Encoding is the argument encoding declared by shared-tensor 0.1 clients. Pickle is refused.
	Encoding string `json:"encoding,omitempty"`
	// Options holds the function's registration as sent by shared-tensor 0.1 clients. Only its name is used.
	Options *callOptions `json:"options,omitempty"`
}

type callOptions struct {
	Name string `json:"name,omitempty"`
}

// function returns the name of the function to call.
func (p *callParams) function() (string, error) {
	for _, name := range []string{p.Name, p.Function, p.FunctionPath} {
		if name != "" {
			return name, nil
		}
	}
	if p.Options != nil && p.Options.Name != "" {
		return p.Options.Name, nil
	}
	return "", fmt.Errorf("%w: the name of the function is missing", models.ErrParams)
}

// check validates the parameters that do not depend on the function.
func (p *callParams) check() error {
	if p.Encoding != "" && p.Encoding != "json" {
		return fmt.Errorf("%w: arguments are JSON; encoding %q is refused", models.ErrSerialization, p.Encoding)
	}
	if p.Tensors != "" && p.Tensors != "inline" && p.Tensors != "url" {
		return fmt.Errorf("%w: tensors is \"inline\" or \"url\", not %q", models.ErrParams, p.Tensors)
	}
	if p.Timeout < 0 || math.IsNaN(p.Timeout) || p.Timeout > 1e8 {
		return fmt.Errorf("%w: timeout is a number of seconds", models.ErrParams)
	}
	return nil
}

// argument builds the argument for an endpoint from JSON values. Tensors in it are still JSON objects.
func (p *callParams) argument(info endpoint.EndpointInfo) (any, error) {
	args, err := decodeList(p.Args)
	if err != nil {
		return nil, fmt.Errorf("%w: args: %w", models.ErrParams, err)
	}
	kwargs, err := decodeObject(p.Kwargs)
	if err != nil {
		return nil, fmt.Errorf("%w: kwargs: %w", models.ErrParams, err)
	}
	if len(info.InFields) == 0 || strings.HasPrefix(info.In, "[") || strings.HasPrefix(info.In, "map[") { // info lists the fields of the elements
		return wholeArgument(info, args, kwargs)
	}
	if len(args) > len(info.InFields) {
		return nil, fmt.Errorf("%w: %s takes at most %d arguments (%s), and %d were given", models.ErrParams, info.Name, len(info.InFields), fieldNames(info), len(args))
	}
	in := make(map[string]any, len(args)+len(kwargs))
	for i, v := range args {
		in[info.InFields[i].Name] = v
	}
	for name, v := range kwargs {
		if _, twice := in[name]; twice {
			return nil, fmt.Errorf("%w: %s is passed by position and by name", models.ErrParams, name)
		}
		if !hasField(info, name) {
			return nil, fmt.Errorf("%w: %s has no argument %q; it takes %s", models.ErrParams, info.Name, name, fieldNames(info))
		}
		in[name] = v
	}
	for _, f := range info.InFields {
		if _, given := in[f.Name]; !given && !f.Optional {
			return nil, fmt.Errorf("%w: %s needs the argument %q; it takes %s", models.ErrParams, info.Name, f.Name, fieldNames(info))
		}
	}
	return in, nil
}

// wholeArgument builds the argument of a function that does not take a struct: one value, the object of the names, or
// nothing.
func wholeArgument(info endpoint.EndpointInfo, args []any, kwargs map[string]any) (any, error) {
	switch {
	case len(args) > 1 || len(args) == 1 && len(kwargs) > 0:
		return nil, fmt.Errorf("%w: %s takes one argument of type %s", models.ErrParams, info.Name, info.In)
	case len(args) == 1:
		return args[0], nil
	case len(kwargs) > 0:
		return kwargs, nil
	case requiredTypes[info.In]:
		return nil, fmt.Errorf("%w: %s needs an argument of type %s", models.ErrParams, info.Name, info.In)
	}
	return nil, nil
}

// requiredTypes contains the argument types that have no default.
var requiredTypes = map[string]bool{
	"string": true, "bool": true, "int": true, "int8": true, "int16": true, "int32": true, "int64": true,
	"uint": true, "uint8": true, "uint16": true, "uint32": true, "uint64": true, "float32": true, "float64": true,
}

func hasField(info endpoint.EndpointInfo, name string) bool {
	for _, f := range info.InFields {
		if f.Name == name {
			return true
		}
	}
	return false
}

func fieldNames(info endpoint.EndpointInfo) string {
	names := make([]string, len(info.InFields))
	for i, f := range info.InFields {
		names[i] = f.Name
	}
	return strings.Join(names, ", ")
}

func decodeList(text json.RawMessage) ([]any, error) {
	v, err := decodeJSON(text)
	if err != nil || v == nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("has to be a list")
	}
	return list, nil
}

func decodeObject(text json.RawMessage) (map[string]any, error) {
	v, err := decodeJSON(text)
	if err != nil || v == nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("has to be an object")
	}
	return object, nil
}

// decodeJSON decodes a value. Empty text decodes to nil.
func decodeJSON(text json.RawMessage) (any, error) {
	if len(text) == 0 {
		return nil, nil
	}
	return jsonvalue.Parse(text)
}
