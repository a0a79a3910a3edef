//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ebitengine/purego"
)

// defaultNames are where the driver's library is looked for when nobody says: by its name in the places of the dynamic
// linker, then by the name that only development packages have, then in the directory that WSL mounts.
var defaultNames = []string{"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"}

// library is the one driver library of the process. It is never closed: threads of the driver may run in it.
var library struct {
	mu     sync.Mutex
	handle uintptr
	path   string
	err    error // why loading failed; kept until the next Load
	// perThread selects the symbols for a default stream per thread.
	perThread bool
	used      bool
	absent    [functionCount]error
}

// addresses are the functions found so far; 0 means not looked for, or not there.
var addresses [functionCount]atomic.Uintptr

// Load opens the driver's library from path, which names a file or is a name for the dynamic linker; the empty path
// means the environment variable SHAREDTENSOR_LIBCUDA or, where that is not set, the usual places. Nobody has to call
// it: the first function called does so with the empty path. There is one library in a process: once it is open, Load
// with another path is an error. Load does not initialise CUDA; that is [Init].
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

// Path is the name under which the library was opened; empty before.
func Path() string {
	library.mu.Lock()
	defer library.mu.Unlock()
	return library.path
}

// UsePerThreadDefaultStream makes the functions that work on the default stream use one per thread, as programs
// compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM do. It has to come before the first call of any function. A
// goroutine that relies on it keeps its thread with [runtime.LockOSThread].
func UsePerThreadDefaultStream() error {
	library.mu.Lock()
	defer library.mu.Unlock()
	if library.used && !library.perThread {
		return errors.New("a CUDA function was already called with the process-wide default stream")
	}
	library.perThread = true
	return nil
}

// procAddressFlags are the flags of [GetProcAddress] with the default stream that the process chose, where they choose
// none.
func procAddressFlags(flags uint64) uint64 {
	library.mu.Lock()
	defer library.mu.Unlock()
	const chosen = uint64(GET_PROC_ADDRESS_LEGACY_STREAM | GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
	if library.perThread && flags&chosen == 0 {
		flags |= uint64(GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
	}
	return flags
}

// loadLocked needs library.mu held.
func loadLocked(path string) error {
	names := []string{path}
	if path == "" {
		if env := os.Getenv("SHAREDTENSOR_LIBCUDA"); env != "" {
			names[0] = env
		} else {
			names = defaultNames
		}
	}
	// purego asks dlerror in a call of its own, which has to come from the same thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var first error
	for _, name := range names {
		handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil && handle != 0 {
			library.handle, library.path, library.err = handle, name, nil
			return nil
		}
		if first == nil {
			first = err
		}
	}
	library.err = &LibraryError{Tried: names, Err: first}
	return library.err
}

// address is where f is, or the code that says that it is not there.
func address(f function) (uintptr, Result) {
	if fn := addresses[f].Load(); fn != 0 {
		return fn, SUCCESS
	}
	return resolve(f)
}

// resolve looks a function up when it is called for the first time. What is not there is looked for once.
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

// unsupported says why f could not be called.
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
