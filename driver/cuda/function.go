package cuda

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Function is a kernel of a module. It keeps the module from being collected and is of no use after the module's Close.
type Function struct {
	mod    *Module
	name   string
	handle cu.Function
	params []param
	known  bool // whether params is what the kernel takes; drivers before CUDA 12.4 do not tell
}

// param is where a parameter lies among a kernel's arguments.
type param struct{ offset, bytes uint64 }

// maxParams is more than a kernel can have: 32,764 bytes of arguments are the limit.
const maxParams = 32764

// Function returns the kernel of the name, which for C++ is the mangled one unless the kernel is extern "C". A name
// that there is not is [ErrNoSymbol].
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

// readParams asks where each parameter lies, until there are no more.
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

// Name is the kernel's name.
func (f *Function) Name() string { return f.name }

// Handle is the function for calls of package cu, valid while the module is open.
func (f *Function) Handle() cu.Function {
	if f.mod.use() == nil {
		defer f.mod.done()
		f.mod.expose()
	}
	return f.handle
}

// Attribute asks for one of the driver's numbers about the kernel, such as [cu.FUNC_ATTRIBUTE_NUM_REGS].
func (f *Function) Attribute(a cu.Function_attribute) (int, error) {
	var v int32
	err := f.mod.call(func() error { return check("cuFuncGetAttribute", cu.FuncGetAttribute(&v, a, f.handle)) })
	return int(v), f.mod.dev.opError("attribute of "+f.name, err)
}

// SetSharedBytes lets the kernel be launched with up to the given number of bytes of dynamic shared memory; without it
// there are 48 KiB.
func (f *Function) SetSharedBytes(bytes uint32) error {
	return f.mod.dev.opError("shared memory of "+f.name, f.mod.call(func() error {
		return check("cuFuncSetAttribute",
			cu.FuncSetAttribute(f.handle, cu.FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int32(bytes)))
	}))
}

// MaxActiveBlocks is how many blocks of the given number of threads and bytes of dynamic shared memory run on one
// multiprocessor at a time.
func (f *Function) MaxActiveBlocks(threads int, sharedBytes uint64) (int, error) {
	var n int32
	err := f.mod.call(func() error {
		return check("cuOccupancyMaxActiveBlocksPerMultiprocessor",
			cu.OccupancyMaxActiveBlocksPerMultiprocessor(&n, f.handle, int32(threads), sharedBytes))
	})
	return int(n), f.mod.dev.opError("occupancy of "+f.name, err)
}

// SuggestBlock is the number of threads of a block that keeps the device busiest, not above limit unless that is 0, and
// the least number of blocks that does so.
func (f *Function) SuggestBlock(sharedBytes uint64, limit int) (threads, blocks int, err error) {
	var grid, block int32
	err = f.mod.call(func() error {
		return check("cuOccupancyMaxPotentialBlockSize",
			cu.OccupancyMaxPotentialBlockSize(&grid, &block, f.handle, 0, sharedBytes, int32(limit)))
	})
	return int(block), int(grid), f.mod.dev.opError("occupancy of "+f.name, err)
}
