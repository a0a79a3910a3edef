package inference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// tensorAlign is the alignment of tensors in a slab.
const tensorAlign = 256

// aligned rounds bytes up to the next possible offset of a tensor.
func aligned(bytes int64) int64 { return (bytes + tensorAlign - 1) / tensorAlign * tensorAlign }

// maxValueBytes limits inputs that are not tensors, because they are copied to Go values and to a message.
const maxValueBytes = 16 << 20

// argument is the argument of a function, built from the inputs of a request. All tensors share one slab.
type argument struct {
	value any

	// tensors and values are the parts of value.
	tensors []argumentTensor
	values  []argumentValue

	alloc   func(m *model, bytes int64) (driver.Memory, error)
	sender  rights.Identity
	charge  *admission.Charge
	regions *regions
	used    []*region
	slab    *tensor.Storage
	closers []io.Closer
}

// argumentTensor is a tensor of an argument, and argumentValue another value of it.
type (
	argumentTensor struct {
		port   port
		tensor *tensor.Tensor
	}
	argumentValue struct {
		path  []string
		value any
	}
)

// close releases the resources of the argument.
func (a *argument) close() error {
	var errs []error
	for _, c := range a.closers {
		errs = append(errs, c.Close())
	}
	if a.slab != nil {
		errs = append(errs, a.slab.Close())
	}
	for _, r := range a.used {
		a.regions.release(r)
	}
	a.charge.Close()
	return errors.Join(errs...)
}

// place is a validated input and its destination. For a tensor, spec, offset and bytes describe its location in the
// slab.
type place struct {
	port   port
	input  inputTensor
	spec   tensor.Spec
	offset int64
	bytes  int64
}

// argument builds the argument of a request. The caller closes it when the call has ended, also after an error. The
// whole request is validated before memory is allocated. Then the inputs are read in order, because several of them may
// be consecutive parts of one body, and the end of the body is verified.
func (s *service) argument(ctx context.Context, m *model, r *request) (*argument, error) {
	sender := rights.Sender(ctx)
	a := &argument{alloc: s.memory.alloc, sender: sender, charge: s.pending.Open(sender), regions: &s.regions}
	fields := map[string]any{}
	places := make([]place, 0, len(r.inputs))
	var total int64
	seen := make(map[string]bool, len(r.inputs))
	for _, in := range r.inputs {
		p, ok := m.input(in.name)
		if !ok {
			return a, fmt.Errorf("%w: unexpected inference input '%s' for model '%s'; it takes %s", ErrInvalid, clip(in.name), m.name, names(m.inputs))
		}
		if seen[in.name] {
			return a, fmt.Errorf("%w: input '%s' is given twice", ErrInvalid, in.name)
		}
		seen[in.name] = true
		if err := a.locate(&in); err != nil {
			return a, inputError(in.name, err)
		}
		place, err := placeOf(p, in)
		if err != nil {
			return a, inputError(in.name, err)
		}
		place.offset = total
		total += aligned(place.bytes)
		if total < 0 {
			return a, fmt.Errorf("%w: total size of the inputs", ErrTooLarge)
		}
		places = append(places, place)
	}
	if err := a.parametersOf(m, r, seen, fields); err != nil {
		return a, err
	}
	if err := complete(m, seen); err != nil {
		return a, err
	}
	if err := a.fill(s, m, places, total, fields); err != nil {
		return a, err
	}
	if r.atEnd != nil {
		if err := r.atEnd(); err != nil {
			return a, err
		}
	}
	if a.value = any(fields); m.whole {
		a.value = fields[""]
	}
	return a, nil
}

func inputError(name string, err error) error { return fmt.Errorf("input '%s': %w", clip(name), err) }

// locate finds the elements of an input in shared memory.
func (a *argument) locate(in *inputTensor) error {
	if in.region == nil {
		if in.data == nil {
			return fmt.Errorf("%w: it has no data", ErrInvalid)
		}
		return nil
	}
	if in.data != nil {
		return fmt.Errorf("%w: data given in addition to shared memory", ErrInvalid)
	}
	r, err := a.regions.use(regionName{a.sender.Key(), in.region.name}, in.region.offset, in.region.bytes)
	if err != nil {
		return err
	}
	a.used = append(a.used, r)
	in.data = &regionSource{region: r, at: in.region.offset, left: in.region.bytes}
	return nil
}

// placeOf validates a client's description of an input.
func placeOf(p port, in inputTensor) (place, error) {
	if p.kind != tensorPort {
		return place{port: p, input: in}, checkValue(p, in)
	}
	dtype, err := dtypeOf(in.datatype)
	if err != nil {
		return place{}, err
	}
	if err := p.checkDeclared(in); err != nil {
		return place{}, err
	}
	spec := tensor.Spec{DType: dtype, Shape: in.shape}
	bytes, err := spec.ByteLen()
	if err != nil {
		return place{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if got := in.data.bytes(); got != bytes {
		return place{}, fmt.Errorf("%w: it has %d bytes of data, and %v of %s has %d", ErrInvalid, got, in.shape, in.datatype, bytes)
	}
	return place{port: p, input: in, spec: spec, bytes: bytes}, nil
}

// checkValue validates an input that is not a tensor.
func checkValue(p port, in inputTensor) error {
	if !takes(p.datatype, in.datatype) {
		return fmt.Errorf("%w: inference input data-type is '%s', model expects '%s'", ErrInvalid, clip(in.datatype), p.datatype)
	}
	n, err := elementCount(in.shape)
	if err != nil {
		return err
	}
	if p.kind == scalarPort && n != 1 {
		return fmt.Errorf("%w: a single value needs shape [1], not %v", ErrInvalid, in.shape)
	}
	got := in.data.bytes()
	if got > maxValueBytes {
		return fmt.Errorf("%w: %d bytes, the limit for inputs other than tensors is %d", ErrTooLarge, got, maxValueBytes)
	}
	if in.datatype == bytesType {
		return nil
	}
	dtype, err := dtypeOf(in.datatype)
	if err != nil {
		return err
	}
	if n > maxValueBytes || got != n*int64(dtype.BitSize()/8) {
		return fmt.Errorf("%w: it has %d bytes of data for %v of %s", ErrInvalid, got, in.shape, in.datatype)
	}
	return nil
}

// valueOf reads the value of an input that is not a tensor.
func (a *argument) valueOf(p port, in inputTensor) (any, error) {
	raw, err := a.readValue(in.data)
	if err != nil {
		return nil, err
	}
	n, err := elementCount(in.shape)
	if err != nil {
		return nil, err
	}
	var values any
	if in.datatype == bytesType {
		values, err = textList(p, raw, n)
	} else {
		values, err = list(in.datatype, raw)
	}
	if err != nil || p.kind == listPort {
		return values, err
	}
	return reflect.ValueOf(values).Index(0).Interface(), nil
}

// smallValue is the size up to which the memory of a value is allocated at once.
const smallValue = 64 << 10

func (a *argument) readValue(from source) ([]byte, error) {
	if from.bytes() > smallValue {
		return a.charge.ReadAll(&sourceReader{from})
	}
	raw := make([]byte, from.bytes())
	return raw, from.read(raw)
}

// put stores a value at a path of nested fields. The empty name denotes the whole argument.
func put(fields map[string]any, path []string, v any) {
	if len(path) == 0 {
		fields[""] = v
		return
	}
	for _, name := range path[:len(path)-1] {
		inner, ok := fields[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			fields[name] = inner
		}
		fields = inner
	}
	fields[path[len(path)-1]] = v
}

// parametersOf sets fields from the request parameters that have the names of inputs with one value.
func (a *argument) parametersOf(m *model, r *request, seen map[string]bool, fields map[string]any) error {
	for name, v := range r.parameters {
		p, ok := m.input(name)
		switch {
		case ok && p.kind == scalarPort && len(p.path) > 0:
			if seen[name] {
				return fmt.Errorf("%w: '%s' is an input and a parameter", ErrInvalid, name)
			}
			seen[name] = true
			v = p.parameter(v)
			a.values = append(a.values, argumentValue{p.path, v})
			put(fields, p.path, v)
		case !isProtocolParameter(name):
			return fmt.Errorf("%w: parameter '%s' is not one of model '%s'", ErrInvalid, clip(name), m.name)
		}
	}
	return nil
}

// parameter returns a parameter of a request as the port takes it.
func (p port) parameter(v any) any {
	switch v := v.(type) {
	case string:
		if p.raw {
			return []byte(v)
		}
	case float64:
		if v == 0 && p.datatype != "" && kindOf(p.datatype) == integers {
			return int64(0) // -0
		}
	}
	return v
}

// complete returns an error if a required input is missing.
func complete(m *model, seen map[string]bool) error {
	var missing []string
	for _, p := range m.inputs {
		if !p.optional && !seen[p.name] {
			missing = append(missing, "'"+p.name+"'")
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: model '%s' needs the input %s", ErrInvalid, m.name, strings.Join(missing, ", "))
	}
	return nil
}

// fill reads the inputs. It allocates one slab for all tensors.
func (a *argument) fill(s *service, m *model, places []place, total int64, fields map[string]any) error {
	for _, p := range places {
		if p.port.kind == tensorPort && a.slab == nil {
			if err := a.takeSlab(s, m, places, total); err != nil {
				return err
			}
		}
		v, err := a.read(p)
		if err != nil {
			return inputError(p.port.name, err)
		}
		if p.port.kind != tensorPort {
			a.values = append(a.values, argumentValue{p.port.path, v})
		}
		put(fields, p.port.path, v)
	}
	return nil
}

// slowFrom is the size from which the inputs of a body are stored in memory that is allocated as it is written. A
// client that announces a large body and sends little of it then uses little memory.
const slowFrom = 1 << 20

func (a *argument) takeSlab(s *service, m *model, places []place, bytes int64) error {
	arrived := bytes
	for _, p := range places {
		if _, later := p.input.data.(*streamSource); later {
			arrived -= p.bytes
		}
	}
	if limit := s.pending.Limit(a.sender); bytes > limit {
		return fmt.Errorf("%w: inputs of %d bytes exceed this client's limit of %d in flight: see --infer-max-pending", ErrTooLarge, bytes, limit)
	}
	if err := a.charge.Add(arrived); err != nil {
		return err
	}
	alloc := func() (driver.Memory, error) { return s.memory.alloc(m, bytes) }
	if _, lazy := s.env.Arrivals.(*host.Device); lazy && s.memory.pool != nil && bytes-arrived >= slowFrom {
		alloc = func() (driver.Memory, error) { return s.env.Arrivals.Alloc(bytes) }
	}
	memory, err := alloc()
	if err != nil {
		return err
	}
	a.slab = tensor.NewStorage(memory)
	return nil
}

// read reads an input: a tensor into the slab, everything else into a value.
func (a *argument) read(p place) (any, error) {
	if p.port.kind != tensorPort {
		return a.valueOf(p.port, p.input)
	}
	if err := a.store(a.slab.Memory(), p); err != nil {
		return nil, err
	}
	p.spec.ByteOffset = p.offset
	t, err := tensor.New(a.slab, p.spec)
	if err != nil {
		return nil, err
	}
	a.closers, a.tensors = append(a.closers, t), append(a.tensors, argumentTensor{p.port, t})
	return t, nil
}

// store copies the elements of an input to memory and clears the gap up to the next tensor, so that no function sees
// data of an earlier request there.
func (a *argument) store(memory driver.Memory, p place) error {
	if mapped, ok := memory.(driver.Mapped); ok {
		whole, unpin, err := mapped.Pin(true)
		if err != nil {
			return err
		}
		defer unpin()
		end := p.offset + p.bytes
		clear(whole[end:min(aligned(end), int64(len(whole)))])
		return a.receive(p.input.data, whole[p.offset:end])
	}
	piece := make([]byte, min(p.bytes, 1<<20))
	for done := int64(0); done < p.bytes; done += int64(len(piece)) {
		piece = piece[:min(int64(len(piece)), p.bytes-done)]
		if err := a.receive(p.input.data, piece); err != nil {
			return err
		}
		if _, err := memory.WriteAt(piece, p.offset+done); err != nil {
			return err
		}
	}
	return nil
}

// receive fills p. Bytes of a body are charged as they arrive; the slab's charge covers all others.
func (a *argument) receive(from source, p []byte) error {
	if _, later := from.(*streamSource); !later {
		return from.read(p)
	}
	for len(p) > 0 {
		piece := p[:min(len(p), 256<<10)]
		if err := from.read(piece); err != nil {
			return err
		}
		if err := a.charge.Add(int64(len(piece))); err != nil {
			return err
		}
		p = p[len(piece):]
	}
	return nil
}
