//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ebitengine/purego"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/ccall"
	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"
)

// library is the driver library of the process. It is never closed, because threads of the driver may run in it.
var library struct {
	mu     sync.Mutex
	handle uintptr
	path   string
	err    error // why loading failed; kept until the next Load
	// perThread selects the symbols for per-thread default streams.
	perThread bool
	used      bool
	absent    [functionCount]error
}

// addresses are the functions found so far. 0 means not looked up, or missing.
var addresses [functionCount]atomic.Uintptr

// Load opens the driver's library from path, which is a file or a name for the dynamic linker. If path is empty, Load
// uses the environment variable SHAREDTENSOR_LIBCUDA or, if that is not set, the default places. Calling Load is
// optional: the first call of a function loads the library with an empty path. A process uses one library: once it is
// open, Load with another path is an error. Load does not initialise CUDA; use [Init].
func Load(path string) error {
	library.mu.Lock()
	defer library.mu.Unlock()
	if library.handle != 0 {
		if path == "" || path == library.path {
			return nil
		}
		return fmt.Errorf("cuda library %s is already loaded, cannot load %s", library.path, path)
	}
	return loadLocked(path)
}

// Path returns the name under which the library was opened. It is empty before.
func Path() string {
	library.mu.Lock()
	defer library.mu.Unlock()
	return library.path
}

// UsePerThreadDefaultStream makes functions use a default stream for each thread, as programs compiled with
// CUDA_API_PER_THREAD_DEFAULT_STREAM do. It must precede the first call of any function. A goroutine that relies on it
// must keep its thread with [runtime.LockOSThread].
func UsePerThreadDefaultStream() error {
	library.mu.Lock()
	defer library.mu.Unlock()
	if library.used && !library.perThread {
		return errors.New("a CUDA function was already called with the process-wide default stream")
	}
	library.perThread = true
	return nil
}

// procAddressFlags adds the default stream that the process chose to flags of [GetProcAddress] that choose none.
func procAddressFlags(flags DriverProcAddress_flags) DriverProcAddress_flags {
	library.mu.Lock()
	defer library.mu.Unlock()
	const chosen = GET_PROC_ADDRESS_LEGACY_STREAM | GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
	if library.perThread && flags&chosen == 0 {
		flags |= GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
	}
	return flags
}

// loadLocked is called with library.mu held.
func loadLocked(path string) error {
	library.handle, library.path, library.err = dl.Open(&driverLibrary, path)
	return library.err
}

// address returns the address of f, or a code that means that f is missing.
func address(f function) (uintptr, Result) {
	if fn := addresses[f].Load(); fn != 0 {
		return fn, SUCCESS
	}
	return resolve(f)
}

// resolve looks up a function at its first call. A missing function is looked up once.
//
//go:noinline
func resolve(f function) (uintptr, Result) {
	library.mu.Lock()
	defer library.mu.Unlock()
	if library.handle == 0 && library.err == nil {
		_ = loadLocked("") // the error is kept
	}
	if library.handle == 0 || library.absent[f] != nil {
		return 0, missingResult(f)
	}
	library.used = true
	symbol := table[f].symbol
	if library.perThread && table[f].perThread != "" {
		symbol = table[f].perThread
	}
	runtime.LockOSThread()
	fn, err := purego.Dlsym(library.handle, symbol)
	runtime.UnlockOSThread()
	if err == nil && fn == 0 {
		err = errors.New("the symbol's address is 0")
	}
	if err != nil {
		library.absent[f] = err
		return 0, missingResult(f)
	}
	addresses[f].Store(fn)
	return fn, SUCCESS
}

// guardOf returns the calls that make a context current and restore the previous one. An address is 0 if the function was
// not looked up, or is missing.
func guardOf(c Context) ccall.Guard {
	return ccall.Guard{Push: addresses[fnCtxPushCurrent].Load(), Pop: addresses[fnCtxPopCurrent].Load(), Arg: uintptr(c)}
}

// resolveIn looks up f and the functions of guardOf. If one of them is missing, it returns the address 0 and the code that
// means that it is missing.
//
//go:noinline
func resolveIn(c Context, f function) (uintptr, ccall.Guard, Result) {
	for _, needed := range []function{f, fnCtxPushCurrent, fnCtxPopCurrent} {
		if fn, missing := address(needed); fn == 0 {
			return 0, ccall.Guard{}, missing
		}
	}
	return addresses[f].Load(), guardOf(c), SUCCESS
}

// unsupported returns the reason why f could not be called.
func unsupported(f function) error {
	library.mu.Lock()
	defer library.mu.Unlock()
	e := &UnsupportedError{Function: table[f].name, Symbol: table[f].symbol, Since: table[f].since}
	if library.perThread && table[f].perThread != "" {
		e.Symbol = table[f].perThread
	}
	if library.handle == 0 {
		e.Err = library.err
		return e
	}
	e.Library, e.Err = library.path, library.absent[f]
	return e
}
