package cuda

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Function is a kernel of a module. It keeps the module reachable, and cannot be used after the module's Close.
type Function struct {
	mod    *Module
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
	f := &Function{mod: m, name: name}
	err := m.lookup(name, func(c *byte) (string, cu.Result) {
		return "cuModuleGetFunction", cu.ModuleGetFunction(&f.handle, m.handle, c)
	})
	if err == nil {
		err = m.call(f.readParams)
	}
	if err != nil {
		return nil, m.dev.opError("function", err)
	}
	return f, nil
}

// readParams queries the place of each parameter until the driver reports that there are no further ones.
func (f *Function) readParams() error {
	for i := range uint64(maxParams) {
		var p param
		r := cu.FuncGetParamInfo(f.handle, i, &p.offset, &p.bytes)
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
	err := f.mod.call(func() error { return check("cuFuncGetAttribute", cu.FuncGetAttribute(&v, a, f.handle)) })
	return int(v), f.mod.dev.opError("attribute of "+f.name, err)
}

// SetSharedBytes sets the limit of dynamic shared memory with which the kernel can be launched. The default is 48 KiB.
func (f *Function) SetSharedBytes(bytes uint32) error {
	return f.mod.dev.opError("shared memory of "+f.name, f.mod.call(func() error {
		return check("cuFuncSetAttribute",
			cu.FuncSetAttribute(f.handle, cu.FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int32(bytes)))
	}))
}

// MaxActiveBlocks returns the number of blocks of the given number of threads and bytes of dynamic shared memory that
// run on one multiprocessor at a time.
func (f *Function) MaxActiveBlocks(threads int, sharedBytes uint64) (int, error) {
	var n int32
	err := f.mod.call(func() error {
		return check("cuOccupancyMaxActiveBlocksPerMultiprocessor",
			cu.OccupancyMaxActiveBlocksPerMultiprocessor(&n, f.handle, int32(threads), sharedBytes))
	})
	return int(n), f.mod.dev.opError("occupancy of "+f.name, err)
}

// SuggestBlock returns the number of threads of a block that maximises occupancy, and the minimum number of blocks that
// does so. limit is the maximum number of threads of a block; 0 means no limit.
func (f *Function) SuggestBlock(sharedBytes uint64, limit int) (threads, blocks int, err error) {
	var grid, block int32
	err = f.mod.call(func() error {
		return check("cuOccupancyMaxPotentialBlockSize",
			cu.OccupancyMaxPotentialBlockSize(&grid, &block, f.handle, 0, sharedBytes, int32(limit)))
	})
	return int(block), int(grid), f.mod.dev.opError("occupancy of "+f.name, err)
}
