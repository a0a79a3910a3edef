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

// tensorType is what EndpointInfo calls a tensor.
const tensorType = "tensor.Tensor"

// EndpointFunction returns the endpoint of an owner as a Function. It has one tensor in and one tensor out, each as it
// is or as the only tensor of a struct, of which all other fields may be left out. The error is ErrInvalid for other
// endpoints. The function borrows c and dev, the device on which arguments are put: the owner maps them there.
func EndpointFunction(c endpoint.Caller, info endpoint.EndpointInfo, dev driver.Device) (Function, error) {
	in, err := tensorField(info.In, info.InFields, true)
	if err != nil {
		return nil, fmt.Errorf("%w: endpoint %q: argument: %w", ErrInvalid, info.Name, err)
	}
	out, err := tensorField(info.Out, info.OutFields, false)
	if err != nil {
		return nil, fmt.Errorf("%w: endpoint %q: result: %w", ErrInvalid, info.Name, err)
	}
	if info.Stream {
		return nil, fmt.Errorf("%w: endpoint %q has a stream of results", ErrInvalid, info.Name)
	}
	return &endpointFunction{caller: c, name: info.Name, in: in, out: out, device: dev}, nil
}

// tensorField returns the name of the field that is the tensor; empty where the whole is.
func tensorField(whole string, fields []endpoint.FieldInfo, argument bool) (string, error) {
	if isTensorType(whole) && len(fields) == 0 {
		return "", nil
	}
	name := ""
	for _, f := range fields {
		switch {
		case isTensorType(f.Type) && name != "":
			return "", fmt.Errorf("there is more than one tensor: %s and %s", name, f.Name)
		case isTensorType(f.Type):
			name = f.Name
		case argument && !f.Optional:
			return "", fmt.Errorf("field %s has to be given", f.Name)
		}
	}
	if name == "" {
		return "", fmt.Errorf("%s has no tensor", whole)
	}
	return name, nil
}

func isTensorType(name string) bool { return name == tensorType || name == "*"+tensorType }

type endpointFunction struct {
	caller  endpoint.Caller
	name    string
	in, out string // fields, or empty
	device  driver.Device
}

// Device is where the owner can map arguments from.
func (f *endpointFunction) Device() driver.Device { return f.device }

// Compute calls the endpoint. Its result is memory of the owner, not a copy.
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

// Endpoints is a Lookup for the endpoints that callers have.
type Endpoints struct {
	// Find returns where the endpoint of a name is called.
	Find func(name string) (endpoint.Caller, error)
	// Device is where arguments are put. Borrowed.
	Device driver.Device

	mu    sync.Mutex
	known map[string]knownEndpoint
}

// knownEndpoint is a function that was found, and when: the endpoints of an owner change when it is replaced.
type knownEndpoint struct {
	function Function
	caller   endpoint.Caller
	at       time.Time
}

// forgetAfter is how long an endpoint is believed to be what it was.
const forgetAfter = 5 * time.Second

// Lookup finds the endpoint of that name. Errors are ErrNotFound, ErrInvalid, and those of the owner.
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
