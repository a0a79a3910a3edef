package cuda

import (
	"fmt"
	"reflect"
	"sync"
	"unsafe"
)

// Kernel is a [Function] whose arguments are the fields of a struct, in order. [KernelOf] checks them once, so a launch
// checks no types and does not allocate for them.
type Kernel[Args any] struct {
	f      *Function
	fields []kernelField
	calls  sync.Pool // of *kernelCall[Args]
}

// kernelField is the place of one argument in Args, and how it becomes a parameter.
type kernelField struct {
	name   string
	offset uintptr
	bytes  int
	kind   argumentKind
	typ    reflect.Type
}

// kernelCall holds the arguments of one launch. The driver has copied them when the launch returns.
type kernelCall[Args any] struct {
	args     Args
	words    []uint64
	pointers []unsafe.Pointer
	list     arguments // only its list of objects in use
}

// KernelOf returns f with the argument types of Args, a struct with one field for each parameter of the kernel. The types
// of fields are those of the arguments of [Function.Launch]. Fields named _ are ignored.
//
// KernelOf compares the number of fields and their sizes with the parameters that the driver reports (CUDA 12.4; not for
// cubins of old compilers), and fails with [driver.ErrInvalid] if they differ. The driver does not report whether four
// bytes are a float or an int.
func KernelOf[Args any](f *Function) (*Kernel[Args], error) {
	k := &Kernel[Args]{f: f}
	if err := k.plan(); err != nil {
		return nil, f.dev.opError("kernel "+f.name, err)
	}
	n := len(k.fields)
	k.calls.New = func() any {
		return &kernelCall[Args]{words: make([]uint64, n), pointers: make([]unsafe.Pointer, n+1),
			list: arguments{used: make([]*resource, 0, n+4)}}
	}
	return k, nil
}

func (k *Kernel[Args]) plan() error {
	t := reflect.TypeFor[Args]()
	if t.Kind() != reflect.Struct {
		return invalid("the arguments are of type %s, not a struct with a field for each parameter", t)
	}
	for i := range t.NumField() {
		s := t.Field(i)
		if s.Name == "_" {
			continue
		}
		n := len(k.fields)
		if k.f.known && n >= len(k.f.params) {
			return invalid("%s has more fields than the %d parameters of the kernel", t, n)
		}
		field, err := k.f.field(s, n)
		if err != nil {
			return fmt.Errorf("field %s of %s: %w", s.Name, t, err)
		}
		k.fields = append(k.fields, field)
	}
	if k.f.known && len(k.fields) != len(k.f.params) {
		return invalid("%s has %d fields, the kernel takes %d", t, len(k.fields), len(k.f.params))
	}
	return nil
}

// field plans the argument for the parameter with the given index.
func (f *Function) field(s reflect.StructField, index int) (kernelField, error) {
	size := unknownSize
	if f.known {
		size = int(f.params[index].bytes)
	}
	p := kernelField{name: s.Name, offset: s.Offset, typ: s.Type}
	var err error
	p.kind, p.bytes, err = argumentType(s.Type, size)
	return p, err
}

// Function returns the kernel without the types of its arguments.
func (k *Kernel[Args]) Function() *Function { return k.f }

// Launch queues the kernel. It borrows the memory among the arguments, which may be closed afterwards: Close waits for
// the kernel. Launch fails with [driver.ErrInvalid] for nil memory and for an int that does not fit its parameter, and
// then queues nothing. Errors of a running kernel are reported by a later call.
func (k *Kernel[Args]) Launch(cfg LaunchConfig, args Args) error {
	c := k.calls.Get().(*kernelCall[Args])
	c.args = args
	err := k.fill(c)
	if err == nil {
		err = k.f.launchWith(&cfg, append(c.list.used, k.f.mod), &c.pointers[0])
	}
	var none Args
	c.args = none
	clear(c.list.used[:cap(c.list.used)]) // also what the launch has appended
	c.list.used = c.list.used[:0]
	k.calls.Put(c)
	return k.f.dev.opError("launch "+k.f.name, err)
}

// fill sets the pointers to the values of the arguments.
func (k *Kernel[Args]) fill(c *kernelCall[Args]) error {
	for i := range k.fields {
		f := &k.fields[i]
		at := unsafe.Add(unsafe.Pointer(&c.args), f.offset)
		c.pointers[i] = unsafe.Pointer(&c.words[i])
		var err error
		switch f.kind {
		case valueArgument:
			c.pointers[i] = at
		case intArgument:
			c.words[i], err = fitInt(*(*int)(at), f.bytes)
		case uintArgument:
			c.words[i], err = fitUint(*(*uint)(at), f.bytes)
		case memoryArgument:
			if m := *(**Memory)(at); m != nil {
				c.list.used = append(c.list.used, &m.resource)
				c.words[i] = uint64(m.ptr)
			} else {
				err = errNilMemory
			}
		case addressArgument:
			v := reflect.NewAt(f.typ, at).Elem()
			if isNil(v) {
				err = errNilMemory
			} else {
				c.words[i], err = c.list.address(v.Interface())
			}
		}
		if err != nil {
			return fmt.Errorf("argument %s: %w", f.name, err)
		}
	}
	return nil
}
