package cuda

import (
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
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
	kind   fieldKind
	typ    reflect.Type
}

type fieldKind uint8

const (
	valueField   fieldKind = iota // the bytes of the field
	intField                      // int, in the size that the kernel takes
	uintField                     // uint, in the size that the kernel takes
	memoryField                   // *Memory
	addressField                  // another type with a device address
)

// kernelCall holds the arguments of one launch. The driver has copied them when the launch returns.
type kernelCall[Args any] struct {
	args     Args
	words    []uint64
	pointers []unsafe.Pointer
	list     arguments // only its list of objects in use
}

var (
	regionType      = reflect.TypeFor[Region]()
	addressableType = reflect.TypeFor[driver.Addressable]()
	memoryType      = reflect.TypeFor[*Memory]()
)

// KernelOf returns f with the argument types of Args, a struct with one field for each parameter of the kernel. A field
// is one of
//
//   - *Memory, *Buffer[T], cu.DevicePtr, or any [driver.Addressable] or [Region] such as *tensor.Tensor, for a pointer;
//   - a number of exactly the parameter's size, or int or uint, which must fit the parameter;
//   - an array or a struct of numbers, for a struct with the same layout in C.
//
// Fields named _ are ignored. KernelOf compares the number of fields and their sizes with the parameters that the driver
// reports (CUDA 12.4; not for cubins of old compilers), and fails with [driver.ErrInvalid] if they differ. The driver
// does not report whether four bytes are a float or an int.
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
	p := kernelField{name: s.Name, offset: s.Offset, bytes: int(s.Type.Size()), typ: s.Type}
	switch {
	case s.Type == memoryType:
		p.kind, p.bytes = memoryField, 8
	case s.Type.Implements(regionType) || s.Type.Implements(addressableType):
		p.kind, p.bytes = addressField, 8
	case s.Type.Kind() == reflect.Int:
		p.kind, p.bytes = intField, size
	case s.Type.Kind() == reflect.Uint:
		p.kind, p.bytes = uintField, size
	default:
		if err := plainType(s.Type); err != nil {
			return p, err
		}
	}
	switch {
	case p.bytes == unknownSize:
		return p, invalid("the driver does not report the size of the parameter: instead of %s use %[1]s32 or %[1]s64", s.Type)
	case size != unknownSize && p.bytes != size:
		return p, invalid("%s has %d bytes, the kernel takes %d", s.Type, p.bytes, size)
	case (p.kind == intField || p.kind == uintField) && size != 1 && size != 2 && size != 4 && size != 8:
		return p, invalid("%s is a number, the kernel takes %d bytes", s.Type, size)
	}
	return p, nil
}

// plainType checks that values of the type have a fixed layout without pointers, the same in Go and C.
func plainType(t reflect.Type) error {
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return nil
	case reflect.Array:
		return plainType(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if err := plainType(t.Field(i).Type); err != nil {
				return err
			}
		}
		return nil
	case reflect.Int, reflect.Uint:
		return invalid("%s has no fixed size: use %[1]s32 or %[1]s64", t)
	}
	return invalid("%s cannot be passed to a kernel", t)
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
		case valueField:
			c.pointers[i] = at
		case intField:
			c.words[i], err = fitInt(*(*int)(at), f.bytes)
		case uintField:
			c.words[i], err = fitUint(*(*uint)(at), f.bytes)
		case memoryField:
			if m := *(**Memory)(at); m != nil {
				c.list.used = append(c.list.used, &m.resource)
				c.words[i] = uint64(m.ptr)
			} else {
				err = errNilMemory
			}
		case addressField:
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

var errNilMemory = invalid("nil memory: for a null pointer use a field of type cu.DevicePtr")

// isNil reports whether a value of any type is nil.
func isNil(v reflect.Value) bool {
	return (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil()
}

func fitInt(v, bytes int) (uint64, error) {
	if bits := 8 * bytes; bits < 64 && (v < -1<<(bits-1) || v > 1<<(bits-1)-1) {
		return 0, invalid("%d does not fit the %d bytes that the kernel takes", v, bytes)
	}
	return uint64(v), nil
}

func fitUint(v uint, bytes int) (uint64, error) {
	if bits := 8 * bytes; bits < 64 && v>>bits != 0 {
		return 0, invalid("%d does not fit the %d bytes that the kernel takes", v, bytes)
	}
	return uint64(v), nil
}
