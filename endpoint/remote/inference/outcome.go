package inference

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// output is an output of a response: a tensor in host memory, which it owns, or encoded elements.
type output struct {
	name, datatype string
	shape          []int64
	t              *tensor.Tensor
	raw            []byte
	// region is set if the elements were stored in shared memory. It replaces the two fields above.
	region *regionClaim
	wanted wanted
}

// data returns the elements, which are valid until close.
func (o *output) data() ([]byte, error) {
	if o.t != nil {
		return tensor.RawData(o.t)
	}
	return o.raw, nil
}

func (o *output) close() {
	if o.t != nil {
		_ = o.t.Close() // read-only memory of the owner
		o.t = nil
	}
}

// outputs are the outputs of one response.
type outputs []*output

func (list outputs) close() {
	for _, o := range list {
		o.close()
	}
}

// outputsOf converts a result, which it owns, to the requested outputs; to all outputs if wants is empty.
func (m *model) outputsOf(result any, wants []wanted, host driver.Device) (list outputs, err error) {
	defer closeTensors(result)
	defer func() {
		if err != nil {
			list.close()
		}
	}()
	if len(wants) == 0 {
		for _, p := range m.outputs {
			wants = append(wants, wanted{name: p.name})
		}
	} else if err := m.checkWanted(wants); err != nil {
		return nil, err
	}
	for _, w := range wants {
		p, _ := m.output(w.name)
		v := at(result, p.path)
		if v == nil {
			continue // an optional field
		}
		o, err := outputOf(p, v, host)
		if err != nil {
			return list, fmt.Errorf("output '%s': %w", w.name, err)
		}
		o.wanted = w
		list = append(list, o)
	}
	return list, nil
}

// checkWanted returns an error for outputs that the model does not have.
func (m *model) checkWanted(wants []wanted) error {
	seen := make(map[string]bool, len(wants))
	for _, w := range wants {
		if _, ok := m.output(w.name); !ok {
			return fmt.Errorf("%w: unexpected inference output '%s' for model '%s'; it has %s", ErrInvalid, clip(w.name), m.name, names(m.outputs))
		}
		if seen[w.name] {
			return fmt.Errorf("%w: output '%s' is requested twice", ErrInvalid, w.name)
		}
		seen[w.name] = true
	}
	return nil
}

// at returns the value at a path of nested fields; nil if there is none.
func at(v any, path []string) any {
	for _, name := range path {
		fields, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = fields[name]
	}
	if t, ok := v.(*tensor.Tensor); ok && t == nil {
		return nil
	}
	return v
}

func outputOf(p port, v any, host driver.Device) (*output, error) {
	o := &output{name: p.name}
	if t, ok := v.(*tensor.Tensor); ok {
		var err error
		if o.datatype, err = datatypeOf(t.DType()); err != nil {
			return nil, err
		}
		if o.t, err = bulk.OnHost(t.Alias(), host); err != nil {
			return nil, err
		}
		o.shape = o.t.Shape()
		return o, nil
	}
	values, isList := v.([]any)
	if !isList {
		values = []any{v}
	}
	if o.datatype = p.datatype; o.datatype == "" {
		o.datatype = datatypeOfValue(slices.Concat(values, []any{nil})[0])
	}
	o.shape = []int64{int64(len(values))}
	for _, one := range values {
		var err error
		if o.raw, err = appendValue(o.raw, o.datatype, one); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// setBatchOfOne adds the first dimension to lists if all lists of the request had the shape [1,N]. Clients of models with a
// batch dimension send such lists and expect them.
func (list outputs) setBatchOfOne(m *model, inputs []inputTensor) {
	lists := 0
	for _, in := range inputs {
		p, _ := m.input(in.name)
		if p.kind != listPort {
			continue
		}
		if lists++; len(in.shape) != 2 || in.shape[0] != 1 {
			return
		}
	}
	for _, o := range list {
		if p, _ := m.output(o.name); p.kind == listPort && lists > 0 && o.t == nil {
			o.shape = append([]int64{1}, o.shape...)
		}
	}
}

// closeTensors closes the tensors of a result.
func closeTensors(v any) {
	switch v := v.(type) {
	case *tensor.Tensor:
		if v != nil {
			_ = v.Close() // only a mapping of the owner's memory
		}
	case *module.StateDict:
		if v != nil {
			_ = v.Close()
		}
	case []any:
		for _, one := range v {
			closeTensors(one)
		}
	case map[string]any:
		for _, one := range v {
			closeTensors(one)
		}
	}
}

// deliver stores outputs in shared memory and computes classifications, as requested.
func (s *service) deliver(list outputs) error {
	for _, o := range list {
		if err := s.deliverOne(o); err != nil {
			return fmt.Errorf("output '%s': %w", o.name, err)
		}
	}
	return nil
}

func (s *service) deliverOne(o *output) error {
	if o.wanted.classes != 0 {
		if err := o.classify(o.wanted.classes); err != nil {
			return err
		}
	}
	claim := o.wanted.region
	if claim == nil {
		return nil
	}
	data, err := o.data()
	if err != nil {
		return err
	}
	if int64(len(data)) > claim.bytes {
		return fmt.Errorf("%w: shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results",
			ErrInvalid, o.name, claim.bytes, len(data))
	}
	if err := claim.held.memory.writeAt(data, claim.offset); err != nil {
		return fmt.Errorf("shared memory region %q: %w", claim.name, err)
	}
	o.region = &regionClaim{name: claim.name, offset: claim.offset, bytes: int64(len(data))}
	o.close()
	o.raw = nil
	return nil
}

// classify replaces the elements with the n largest of each row (the last dimension), as texts "VALUE:INDEX".
func (o *output) classify(n int64) error {
	if n < 0 {
		return fmt.Errorf("%w: classification takes a positive number", ErrInvalid)
	}
	if o.t == nil || kindOf(o.datatype) != floats && kindOf(o.datatype) != integers {
		return fmt.Errorf("%w: classification needs a tensor of numbers", ErrInvalid)
	}
	data, err := tensor.RawData(o.t)
	if err != nil {
		return err
	}
	values, err := rankedOf(data, o.datatype)
	if err != nil {
		return err
	}
	row := int64(values.len())
	if rank := len(o.shape); rank > 0 {
		row = o.shape[rank-1]
	}
	n = min(n, row)
	var raw []byte
	order := make([]int, row)
	for at := 0; at+int(row) <= values.len() && row > 0; at += int(row) {
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(i, j int) int { return values.compare(at+j, at+i) })
		for _, i := range order[:n] {
			raw = appendText(raw, strconv.AppendInt(append(values.text(nil, at+i), ':'), int64(i), 10))
		}
	}
	if rank := len(o.shape); rank > 0 {
		o.shape = append(slices.Clone(o.shape[:rank-1]), n)
	} else {
		o.shape = []int64{n}
	}
	o.close()
	o.datatype, o.raw = bytesType, raw
	return nil
}

// Errors of this package, wrapped with details. They are sent as gRPC codes and HTTP statuses.
var (
	// ErrInvalid is returned for a request that contradicts itself or does not match the model.
	ErrInvalid = admission.NewError(admission.Invalid, "invalid request")
	// ErrNotFound is returned for an unknown model, version or region.
	ErrNotFound = admission.NewError(admission.NotFound, "not found")
	// ErrExists is returned for a region with a name that is in use.
	ErrExists = admission.NewError(admission.Exists, "already exists")
	// ErrTooLarge is returned for a request over a limit.
	ErrTooLarge = admission.NewError(admission.TooLarge, "too large")
	// ErrNotServed is returned for a part of the protocol that is not supported, or not available to this client.
	ErrNotServed = admission.NewError(admission.NotServed, "not served")
	// ErrBusy is returned for a request to a model whose queue is full.
	ErrBusy = admission.NewError(admission.Unavailable, "busy")
	// ErrNotReady is returned for a model that was unloaded.
	ErrNotReady = admission.NewError(admission.Unavailable, "not ready")
)

// notDecoupled returns the error for a unary request to a decoupled model.
func notDecoupled(m *model) error {
	return fmt.Errorf("%w: model '%s' is decoupled: use ModelStreamInfer", ErrNotServed, m.name)
}

// unknownModel is an ErrNotFound whose text begins as Triton's does. Clients compare the beginning.
type unknownModel struct{ text string }

// Error implements error.
func (e *unknownModel) Error() string { return e.text }

// Unwrap returns ErrNotFound.
func (e *unknownModel) Unwrap() error { return ErrNotFound }
