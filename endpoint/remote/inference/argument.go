package inference

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// tensorAlign is where tensors of a slab begin.
const tensorAlign = 256

// aligned is the next place at or behind bytes where a tensor may begin.
func aligned(bytes int64) int64 { return (bytes + tensorAlign - 1) / tensorAlign * tensorAlign }

// maxValueBytes bounds inputs that are no tensors: they are copied to Go values and to a message.
const maxValueBytes = 16 << 20

// budget bounds the memory of all requests.
type budget struct {
	limit int64

	mu   sync.Mutex
	used int64
}

func (b *budget) take(bytes int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if bytes > b.limit-b.used {
		return fmt.Errorf("%w: inputs of %d bytes are more than is left of %d for all requests: see --infer-max-pending", ErrTooLarge, bytes, b.limit)
	}
	b.used += bytes
	return nil
}

func (b *budget) give(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= bytes
}

// bytes is how much is in use.
func (b *budget) bytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// argument is that of a function, made of the inputs of a request. All tensors lie in one slab.
type argument struct {
	value any

	budget  *budget
	taken   int64
	regions *regions
	used    []*region
	slab    *tensor.Storage
	closers []io.Closer
}

// close gives back what the argument was made of.
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
	a.budget.give(a.taken)
	return errors.Join(errs...)
}

// place is an input that was checked, and where it goes. Of a tensor, spec, offset and bytes say where its elements are
// put.
type place struct {
	port   port
	input  inputTensor
	spec   tensor.Spec
	offset int64
	bytes  int64
}

// argument makes the argument of a request. The caller closes it when the call has ended, also on an error. All that
// the client says is checked before memory is taken; then the inputs are read in their order, as some are the next
// bytes of one body.
func (s *service) argument(m *model, r *request) (*argument, error) {
	a := &argument{budget: &s.pending, regions: &s.regions}
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
			return a, fmt.Errorf("%w: the inputs together", ErrTooLarge)
		}
		places = append(places, place)
	}
	if err := parametersOf(m, r, seen, fields); err != nil {
		return a, err
	}
	if err := complete(m, seen); err != nil {
		return a, err
	}
	if err := a.fill(s, m, places, total, fields); err != nil {
		return a, err
	}
	if a.value = any(fields); m.whole {
		a.value = fields[""]
	}
	return a, nil
}

func inputError(name string, err error) error { return fmt.Errorf("input '%s': %w", clip(name), err) }

// locate finds the elements of an input that is in shared memory.
func (a *argument) locate(in *inputTensor) error {
	if in.region == nil {
		if in.data == nil {
			return fmt.Errorf("%w: it has no data", ErrInvalid)
		}
		return nil
	}
	if in.data != nil {
		return fmt.Errorf("%w: it has data beside shared memory", ErrInvalid)
	}
	r, err := a.regions.use(in.region.name, in.region.offset, in.region.bytes)
	if err != nil {
		return err
	}
	a.used = append(a.used, r)
	in.data = &regionSource{region: r, at: in.region.offset, left: in.region.bytes}
	return nil
}

// placeOf checks what a client says of an input.
func placeOf(p port, in inputTensor) (place, error) {
	if p.kind != tensorPort {
		return place{port: p, input: in}, checkValue(p, in)
	}
	dtype, err := dtypeOf(in.datatype)
	if err != nil {
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

// checkValue checks an input that is no tensor.
func checkValue(p port, in inputTensor) error {
	if !takes(p.datatype, in.datatype) {
		return fmt.Errorf("%w: inference input data-type is '%s', model expects '%s'", ErrInvalid, clip(in.datatype), p.datatype)
	}
	n, err := elementCount(in.shape)
	if err != nil {
		return err
	}
	if p.kind == scalarPort && n != 1 {
		return fmt.Errorf("%w: it is one value, of shape [1], and not of shape %v", ErrInvalid, in.shape)
	}
	got := in.data.bytes()
	if got > maxValueBytes {
		return fmt.Errorf("%w: %d bytes, of at most %d for what is no tensor", ErrTooLarge, got, maxValueBytes)
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

// valueOf reads the value of an input that is no tensor.
func valueOf(p port, in inputTensor) (any, error) {
	raw := make([]byte, in.data.bytes())
	if err := in.data.read(raw); err != nil {
		return nil, err
	}
	n, err := elementCount(in.shape)
	if err != nil {
		return nil, err
	}
	values, err := list(in.datatype, raw, n)
	if err != nil || p.kind == listPort {
		return values, err
	}
	return reflect.ValueOf(values).Index(0).Interface(), nil
}

// put puts a value to its place in nested fields. The whole is under the empty name.
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

// parametersOf makes fields of the parameters that are named as inputs of one value are.
func parametersOf(m *model, r *request, seen map[string]bool, fields map[string]any) error {
	for name, v := range r.parameters {
		p, ok := m.input(name)
		switch {
		case ok && p.kind == scalarPort && len(p.path) > 0:
			if seen[name] {
				return fmt.Errorf("%w: '%s' is an input and a parameter", ErrInvalid, name)
			}
			seen[name] = true
			put(fields, p.path, v)
		case !isProtocolParameter(name):
			return fmt.Errorf("%w: parameter '%s' is not one of model '%s'", ErrInvalid, clip(name), m.name)
		}
	}
	return nil
}

// complete refuses a request in which an input is missing.
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

// fill reads the inputs. It takes one slab for all tensors.
func (a *argument) fill(s *service, m *model, places []place, total int64, fields map[string]any) error {
	for _, p := range places {
		if p.port.kind == tensorPort && a.slab == nil {
			if err := a.takeSlab(s, m, total); err != nil {
				return err
			}
		}
		v, err := a.read(p)
		if err != nil {
			return inputError(p.port.name, err)
		}
		put(fields, p.port.path, v)
	}
	return nil
}

func (a *argument) takeSlab(s *service, m *model, bytes int64) error {
	if err := a.budget.take(bytes); err != nil {
		return err
	}
	a.taken = bytes
	memory, err := s.memory.alloc(m, bytes)
	if err != nil {
		return err
	}
	a.slab = tensor.NewStorage(memory)
	return nil
}

// read reads an input: a tensor to the slab, and anything else to a value.
func (a *argument) read(p place) (any, error) {
	if p.port.kind != tensorPort {
		return valueOf(p.port, p.input)
	}
	if err := store(a.slab.Memory(), p); err != nil {
		return nil, err
	}
	p.spec.ByteOffset = p.offset
	t, err := tensor.New(a.slab, p.spec)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, t)
	return t, nil
}

// store copies the elements of an input to memory, and zeroes what is left to the next: no function sees what an
// earlier request left there.
func store(memory driver.Memory, p place) error {
	if mapped, ok := memory.(driver.Mapped); ok {
		whole, unpin, err := mapped.Pin(true)
		if err != nil {
			return err
		}
		defer unpin()
		end := p.offset + p.bytes
		clear(whole[end:min(aligned(end), int64(len(whole)))])
		return p.input.data.read(whole[p.offset:end])
	}
	piece := make([]byte, min(p.bytes, 1<<20))
	for done := int64(0); done < p.bytes; done += int64(len(piece)) {
		piece = piece[:min(int64(len(piece)), p.bytes-done)]
		if err := p.input.data.read(piece); err != nil {
			return err
		}
		if _, err := memory.WriteAt(piece, p.offset+done); err != nil {
			return err
		}
	}
	return nil
}
