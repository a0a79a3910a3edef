package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Optimization is a level of optimisation of the driver's compiler.
type Optimization uint8

// The levels. The default is the highest.
const (
	OptimizeDefault Optimization = iota
	OptimizeO0
	OptimizeO1
	OptimizeO2
	OptimizeO3
	OptimizeO4
)

// CacheMode is a preference for caching of global loads in generated code.
type CacheMode uint8

// The cache modes.
const (
	CacheDefault CacheMode = iota
	// CacheNone has no preference.
	CacheNone
	// CacheL2 caches in the second level only.
	CacheL2
	// CacheAll caches in both levels.
	CacheAll
)

// JITOptions configure how the driver compiles PTX. They have no effect on cubins. The zero value uses the driver's
// defaults.
type JITOptions struct {
	// MaxRegisters limits the registers of a thread. 0 means no limit.
	MaxRegisters uint32
	// ThreadsPerBlock is the minimum number of threads of a block for which the code must be launchable. 0 means none.
	ThreadsPerBlock uint32
	// Optimization is the level of optimisation.
	Optimization Optimization
	// Cache is the preference for caching of global loads.
	Cache CacheMode
	// LineInfo and DebugInfo add information for profilers and debuggers.
	LineInfo, DebugInfo bool
	// Verbose adds statistics, such as the registers of each kernel, to the log.
	Verbose bool
	// LogBytes is the size of each of the two buffers for messages. 0 means 16 KiB. Longer messages are truncated.
	LogBytes int
}

// defaultLogBytes is the size of a buffer for the compiler's messages.
const defaultLogBytes = 16 << 10

// CompileError is code that the driver's compiler refused.
type CompileError struct {
	// Log contains the compiler's errors, Info its other messages.
	Log, Info string
	// Err is the error of the driver.
	Err error
}

// Error returns the driver's error and the compiler's errors.
func (e *CompileError) Error() string { return fmt.Sprintf("%v: %s", e.Err, e.Log) }

// Unwrap returns the driver's error.
func (e *CompileError) Unwrap() error { return e.Err }

// load calls a function of the driver that compiles, with the options and buffers for both logs. It returns the info
// log. An error with messages is a [*CompileError].
func (o JITOptions) load(name string, call func(keys *cu.Jit_option, values *uintptr, n uint32) cu.Result) (log string, err error) {
	size := o.LogBytes
	if size == 0 {
		size = defaultLogBytes
	}
	if size < 16 || size > 1<<24 || o.Optimization > OptimizeO4 || o.Cache > CacheAll {
		return "", invalid("compiler options with %d bytes for messages, level %d, cache mode %d", size, o.Optimization, o.Cache)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	info, errs := make([]byte, size), make([]byte, size)
	pin.Pin(&info[0])
	pin.Pin(&errs[0])
	keys := []cu.Jit_option{cu.JIT_INFO_LOG_BUFFER, cu.JIT_INFO_LOG_BUFFER_SIZE_BYTES, cu.JIT_ERROR_LOG_BUFFER, cu.JIT_ERROR_LOG_BUFFER_SIZE_BYTES}
	values := []uintptr{uintptr(unsafe.Pointer(&info[0])), uintptr(size), uintptr(unsafe.Pointer(&errs[0])), uintptr(size)}
	add := func(set bool, key cu.Jit_option, value uintptr) {
		if set {
			keys, values = append(keys, key), append(values, value)
		}
	}
	add(o.MaxRegisters > 0, cu.JIT_MAX_REGISTERS, uintptr(o.MaxRegisters))
	add(o.ThreadsPerBlock > 0, cu.JIT_THREADS_PER_BLOCK, uintptr(o.ThreadsPerBlock))
	add(o.Optimization > 0, cu.JIT_OPTIMIZATION_LEVEL, uintptr(o.Optimization-OptimizeO0))
	add(o.Cache > 0, cu.JIT_CACHE_MODE, uintptr(o.Cache-CacheNone))
	add(o.LineInfo, cu.JIT_GENERATE_LINE_INFO, 1)
	add(o.DebugInfo, cu.JIT_GENERATE_DEBUG_INFO, 1)
	add(o.Verbose, cu.JIT_LOG_VERBOSE, 1)
	err = check(name, call(&keys[0], &values[0], uint32(len(keys))))
	log = strings.TrimSpace(cString(info))
	if text := strings.TrimSpace(cString(errs)); err != nil && (text != "" || log != "") && !errors.Is(err, errors.ErrUnsupported) {
		err = &CompileError{Log: text, Info: log, Err: err}
	}
	return log, err
}

// loadModule and loadLibrary borrow an image that checkImage has accepted.
func loadModule(c cu.Context, h *cu.Module, image []byte, keys *cu.Jit_option, values *uintptr, n uint32) cu.Result {
	return c.ModuleLoadDataEx(h, unsafe.Pointer(&image[0]), n, keys, values)
}

func loadLibrary(c cu.Context, h *cu.Library, image []byte, keys *cu.Jit_option, values *uintptr, n uint32) cu.Result {
	return c.LibraryLoadData(h, unsafe.Pointer(&image[0]), keys, values, n, nil, nil, 0)
}
