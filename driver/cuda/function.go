package cuda

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Function is a kernel of a module or a library. It keeps its owner reachable, and cannot be used after the owner's Close.
type Function struct {
	dev    *Device
	mod    *resource // of the module or the library
	name   string
	handle cu.Function
	params []param
	known  bool // whether params is valid; drivers before CUDA 12.4 do not report parameters
}

// param is the place of a parameter among a kernel's arguments.
type param struct{ offset, bytes uint64 }

// maxParams exceeds the number of parameters that a kernel can have: its arguments are limited to 32,764 bytes.
const maxParams = 32764

// Function returns the kernel with the name, which for C++ is mangled unless the kernel is extern "C". It returns
// [ErrNoSymbol] if the module has no such kernel.
func (m *Module) Function(name string) (*Function, error) {
	f := &Function{dev: m.dev, mod: &m.resource, name: name}
	err := m.lookup(name, func(c cu.Context, name *byte) (string, cu.Result) {
		return "cuModuleGetFunction", c.ModuleGetFunction(&f.handle, m.handle, name)
	})
	if err == nil {
		err = f.with(f.readParams)
	}
	if err != nil {
		return nil, m.dev.opError("function", err)
	}
	return f, nil
}

// readParams queries the place of each parameter until the driver reports that there are no further ones.
func (f *Function) readParams(c cu.Context) error {
	for i := range uint64(maxParams) {
		var p param
		r := c.FuncGetParamInfo(f.handle, i, &p.offset, &p.bytes)
		switch {
		case r == cu.SUCCESS:
			f.params = append(f.params, p)
		case r == cu.ERROR_INVALID_VALUE:
			f.known = true
			return nil
		case r.Missing() || r == cu.ERROR_NOT_SUPPORTED:
			f.params = nil
			return nil
		default:
			return check("cuFuncGetParamInfo", r)
		}
	}
	return fmt.Errorf("kernel %s: more than %d parameters", f.name, maxParams)
}

// with runs fn while neither the kernel nor its context can be released. fn calls the driver by methods of the context. A
// kernel of a library may be for another device than that which loaded the library.
func (f *Function) with(fn func(c cu.Context) error) error {
	if f.dev.p == f.mod.p {
		return f.mod.call(fn)
	}
	if err := f.mod.use(); err != nil {
		return err
	}
	defer f.mod.done()
	return f.dev.Call(fn)
}

// Name returns the kernel's name.
func (f *Function) Name() string { return f.name }

// Handle returns the function for calls of package cu. It is valid while the module is open.
func (f *Function) Handle() cu.Function {
	if f.mod.use() == nil {
		defer f.mod.done()
		f.mod.expose()
	}
	return f.handle
}

// Attribute returns a numeric attribute of the kernel, such as [cu.FUNC_ATTRIBUTE_NUM_REGS].
func (f *Function) Attribute(a cu.Function_attribute) (int, error) {
	var v int32
	err := f.with(func(c cu.Context) error { return check("cuFuncGetAttribute", c.FuncGetAttribute(&v, a, f.handle)) })
	return int(v), f.dev.opError("attribute of "+f.name, err)
}

// SetSharedBytes sets the limit of dynamic shared memory with which the kernel can be launched. The default is 48 KiB.
func (f *Function) SetSharedBytes(bytes uint32) error {
	return f.dev.opError("shared memory of "+f.name, f.with(func(c cu.Context) error {
		return check("cuFuncSetAttribute",
			c.FuncSetAttribute(f.handle, cu.FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int32(bytes)))
	}))
}

// AllowLargeClusters allows launches with clusters of more than 8 blocks, which not every device supports.
func (f *Function) AllowLargeClusters() error {
	return f.dev.opError("clusters of "+f.name, f.with(func(c cu.Context) error {
		return check("cuFuncSetAttribute", c.FuncSetAttribute(f.handle, cu.FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
	}))
}
