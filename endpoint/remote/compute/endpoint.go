package compute

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Type names in EndpointInfo: of a tensor, and of a value of a Python function that declares no type.
const (
	tensorType = "tensor.Tensor"
	anyType    = "any"
)

// EndpointFunction returns an owner's endpoint as a Function. The endpoint must have one tensor in and one tensor out.
// Each is either the whole value or the only tensor of a struct with no other required fields. A value without a type
// counts as a tensor if there is no other. For other endpoints the error is ErrInvalid. The function borrows c and dev. Arguments are placed on dev, and the owner maps them from there.
func EndpointFunction(c endpoint.Caller, info endpoint.EndpointInfo, dev driver.Device) (Function, error) {
	in, err := tensorField(info.In, info.InTensor != nil, info.InFields, true)
	if err != nil {
		return nil, fmt.Errorf("%w: endpoint %q: argument: %w", ErrInvalid, info.Name, err)
	}
	out, err := tensorField(info.Out, info.OutTensor != nil, info.OutFields, false)
	if err != nil {
		return nil, fmt.Errorf("%w: endpoint %q: result: %w", ErrInvalid, info.Name, err)
	}
	if info.Stream {
		return nil, fmt.Errorf("%w: endpoint %q has a stream of results", ErrInvalid, info.Name)
	}
	return &endpointFunction{caller: c, name: info.Name, in: in, out: out, device: dev}, nil
}

// tensorField returns the name of the field that holds the tensor; empty if the whole value is the tensor, which
// declared confirms.
func tensorField(whole string, declared bool, fields []endpoint.FieldInfo, argument bool) (string, error) {
	if len(fields) == 0 && (declared || isTensorType(whole) || whole == anyType) {
		return "", nil
	}
	var tensors, untyped, required []string
	for _, f := range fields {
		switch {
		case isTensorType(f.Type) || f.Tensor != nil:
			tensors = append(tensors, f.Name)
		case f.Type == anyType && !f.Optional:
			untyped = append(untyped, f.Name)
		case argument && !f.Optional:
			required = append(required, f.Name)
		}
	}
	if len(tensors) == 0 && len(untyped) == 1 {
		tensors, untyped = untyped, nil
	}
	if argument {
		required = append(required, untyped...)
	}
	switch {
	case len(required) > 0:
		return "", fmt.Errorf("field %s is required", required[0])
	case len(tensors) == 0:
		return "", fmt.Errorf("%s has no tensor", whole)
	case len(tensors) > 1:
		return "", fmt.Errorf("more than one tensor: %s and %s", tensors[0], tensors[1])
	}
	return tensors[0], nil
}

func isTensorType(name string) bool { return name == tensorType || name == "*"+tensorType }

type endpointFunction struct {
	caller  endpoint.Caller
	name    string
	in, out string // field names, or empty
	device  driver.Device
}

// Device returns the device from which the owner can map arguments.
func (f *endpointFunction) Device() driver.Device { return f.device }

// Compute calls the endpoint. The result is the owner's memory, not a copy.
func (f *endpointFunction) Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	var argument any = in
	if f.in != "" {
		argument = map[string]any{f.in: in}
	}
	if f.out == "" {
		return endpoint.Call[*tensor.Tensor](ctx, f.caller, f.name, argument)
	}
	fields, err := endpoint.Call[map[string]any](ctx, f.caller, f.name, argument)
	if err != nil {
		return nil, err
	}
	var out *tensor.Tensor
	for name, value := range fields {
		if t, ok := value.(*tensor.Tensor); ok {
			if name == f.out {
				out = t
				continue
			}
			t.Close()
		}
	}
	if out == nil {
		return nil, fmt.Errorf("endpoint %q returned no tensor", f.name)
	}
	return out, nil
}

// Endpoints provides a Lookup for the endpoints of callers.
type Endpoints struct {
	// Find returns the caller that has the endpoint name.
	Find func(name string) (endpoint.Caller, error)
	// Device holds arguments. Borrowed.
	Device driver.Device

	mu    sync.Mutex
	known map[string]knownEndpoint
}

// knownEndpoint is a cached function with the time of its lookup. A new owner may have other endpoints.
type knownEndpoint struct {
	function Function
	caller   endpoint.Caller
	at       time.Time
}

// forgetAfter is how long the description of an endpoint is cached.
const forgetAfter = 5 * time.Second

// Lookup returns the endpoint name as a Function. It fails with ErrNotFound, ErrInvalid, or the owner's error.
func (e *Endpoints) Lookup(ctx context.Context, name string) (Function, error) {
	caller, err := e.Find(name)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	known, ok := e.known[name]
	e.mu.Unlock()
	if ok && known.caller == caller && time.Since(known.at) < forgetAfter {
		return known.function, nil
	}
	list, err := caller.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	for _, info := range list {
		if info.Name != name {
			continue
		}
		f, err := EndpointFunction(caller, info, e.Device)
		if err != nil {
			return nil, err
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.known == nil {
			e.known = make(map[string]knownEndpoint)
		}
		e.known[name] = knownEndpoint{f, caller, time.Now()}
		return f, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNotFound, name)
}
