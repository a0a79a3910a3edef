package jsonrpc

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// callParams are the parameters of a call.
type callParams struct {
	// Name is the function.
	Name string `json:"name,omitempty"`
	// Args are arguments by position: the fields of the function's argument in their order, or the one value that it
	// takes. Kwargs are arguments by name.
	Args   json.RawMessage `json:"args,omitempty"`
	Kwargs json.RawMessage `json:"kwargs,omitempty"`
	// Timeout is how long the function may take, in seconds; 0 is for ever.
	Timeout float64 `json:"timeout,omitempty"`
	// Tensors is how tensors of the result come: "inline" (or empty) or "url".
	Tensors string `json:"tensors,omitempty"`
	// Function and FunctionPath are other words for Name, as clients of shared-tensor 0.1 send them.
	Function     string `json:"function,omitempty"`
	FunctionPath string `json:"function_path,omitempty"`
	// Encoding is what clients of shared-tensor 0.1 say of their arguments. Pickle is refused.
	Encoding string `json:"encoding,omitempty"`
	// Options are those clients' registrations, which are the owner's own business; only the name in it is looked at.
	Options *callOptions `json:"options,omitempty"`
}

type callOptions struct {
	Name string `json:"name,omitempty"`
}

// function is the name that was meant.
func (p *callParams) function() (string, error) {
	for _, name := range []string{p.Name, p.Function, p.FunctionPath} {
		if name != "" {
			return name, nil
		}
	}
	if p.Options != nil && p.Options.Name != "" {
		return p.Options.Name, nil
	}
	return "", fmt.Errorf("%w: the name of the function is missing", errParams)
}

// check refuses what no function is asked for.
func (p *callParams) check() error {
	if p.Encoding != "" && p.Encoding != "json" {
		return fmt.Errorf("%w: arguments are JSON; encoding %q is refused", errSerialization, p.Encoding)
	}
	if p.Tensors != "" && p.Tensors != "inline" && p.Tensors != "url" {
		return fmt.Errorf("%w: tensors is \"inline\" or \"url\", not %q", errParams, p.Tensors)
	}
	if p.Timeout < 0 || math.IsNaN(p.Timeout) || p.Timeout > 1e8 {
		return fmt.Errorf("%w: timeout is a number of seconds", errParams)
	}
	return nil
}

// argument puts the arguments together for an endpoint; values of JSON, in which tensors are still objects.
func (p *callParams) argument(info endpoint.EndpointInfo) (any, error) {
	args, err := decodeList(p.Args)
	if err != nil {
		return nil, fmt.Errorf("%w: args: %w", errParams, err)
	}
	kwargs, err := decodeObject(p.Kwargs)
	if err != nil {
		return nil, fmt.Errorf("%w: kwargs: %w", errParams, err)
	}
	if len(info.InFields) == 0 {
		return wholeArgument(info, args, kwargs)
	}
	if len(args) > len(info.InFields) {
		return nil, fmt.Errorf("%w: %s takes at most %d arguments (%s), and %d were given", errParams, info.Name, len(info.InFields), fieldNames(info), len(args))
	}
	in := make(map[string]any, len(args)+len(kwargs))
	for i, v := range args {
		in[info.InFields[i].Name] = v
	}
	for name, v := range kwargs {
		if _, twice := in[name]; twice {
			return nil, fmt.Errorf("%w: %s is given by position and by name", errParams, name)
		}
		if !hasField(info, name) {
			return nil, fmt.Errorf("%w: %s has no argument %q; it takes %s", errParams, info.Name, name, fieldNames(info))
		}
		in[name] = v
	}
	return in, nil
}

// wholeArgument is that of a function whose argument is no struct: one value, the object of the names, or nothing.
func wholeArgument(info endpoint.EndpointInfo, args []any, kwargs map[string]any) (any, error) {
	switch {
	case len(args) > 1 || len(args) == 1 && len(kwargs) > 0:
		return nil, fmt.Errorf("%w: %s takes one argument of type %s", errParams, info.Name, info.In)
	case len(args) == 1:
		return args[0], nil
	case len(kwargs) > 0:
		return kwargs, nil
	}
	return nil, nil
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

// decodeJSON reads a value. Nothing is nil.
func decodeJSON(text json.RawMessage) (any, error) {
	if len(text) == 0 {
		return nil, nil
	}
	return endpoint.ParseJSON(text)
}
