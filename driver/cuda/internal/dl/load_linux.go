//go:build linux && (amd64 || arm64) && !nocuda

package dl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/ccall"
)

// Library is a shared library of the process. It is never closed, because its threads may run.
type Library struct {
	config    Config
	addresses []atomic.Uintptr // of the functions found so far; 0 means not looked up, or missing

	mu     sync.Mutex
	handle uintptr
	path   string
	err    error   // why loading failed; kept until the next Load
	absent []error // by function
}

// New returns a library that is opened by Load or by the first call.
func New(c Config) *Library {
	return &Library{config: c, addresses: make([]atomic.Uintptr, len(c.Functions)), absent: make([]error, len(c.Functions))}
}

// Load opens the library from path, or from the default places if path is empty. Once the library is open, another path
// is an error.
func (l *Library) Load(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle != 0 {
		if path == "" || path == l.path {
			return nil
		}
		return fmt.Errorf("%s library %s is already loaded, cannot load %s", l.config.Title, l.path, path)
	}
	return l.loadLocked(path)
}

// Path returns the name under which the library was opened. It is empty before.
func (l *Library) Path() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.path
}

// loadLocked is called with l.mu held.
func (l *Library) loadLocked(path string) error {
	l.handle, l.path, l.err = Open(&l.config, path)
	return l.err
}

// File returns the path of the library's file, or the empty string if the library is not open. Path may be a name for the
// dynamic linker.
func (l *Library) File() string {
	var fn uintptr
	for f := range l.config.Functions {
		if fn = l.address(f); fn != 0 {
			break
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if fn == 0 || err != nil {
		return ""
	}
	for line := range strings.Lines(string(maps)) {
		var start, end uintptr
		if _, err := fmt.Sscanf(line, "%x-%x ", &start, &end); err != nil || fn < start || fn >= end {
			continue
		}
		if i := strings.IndexByte(line, '/'); i >= 0 {
			return strings.TrimSuffix(line[i:], "\n")
		}
	}
	return ""
}

// address returns the address of function f, or 0 if it is missing. A missing function is looked up once.
func (l *Library) address(f int) uintptr {
	if fn := l.addresses[f].Load(); fn != 0 {
		return fn
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == 0 && l.err == nil {
		_ = l.loadLocked("") // the error is kept
	}
	if l.handle == 0 || l.absent[f] != nil {
		return 0
	}
	runtime.LockOSThread()
	fn, err := purego.Dlsym(l.handle, l.config.Functions[f].Symbol)
	runtime.UnlockOSThread()
	if err == nil && fn == 0 {
		err = errors.New("the symbol's address is 0")
	}
	if err != nil {
		l.absent[f] = err
		return 0
	}
	l.addresses[f].Store(fn)
	return fn
}

func (l *Library) unsupported(f int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &UnsupportedError{Function: l.config.Functions[f].Name, Symbol: l.config.Functions[f].Symbol, Err: l.err}
	if l.handle != 0 {
		e.Library, e.Err = l.path, l.absent[f]
	}
	return e
}

// Call calls function f with at most 16 words and returns its code. A pointer becomes a word only inside the argument list of Call,
// as uintptr(unsafe.Pointer(p)): the compiler then moves the pointer's target to the heap and keeps it alive for the call.
//
//go:uintptrescapes
//go:noinline
func (l *Library) Call(f int, words ...uintptr) int32 {
	fn := l.address(f)
	if fn == 0 {
		return missingCode(f)
	}
	if len(words) <= 6 {
		frame := ccall.Frame6{Fn: fn}
		copy(frame.A[:], words)
		return frame.Call()
	}
	frame := ccall.Frame16{Fn: fn}
	copy(frame.A[:], words)
	return frame.Call()
}

// CallString calls function f, which returns a NUL-terminated text that the library owns, and returns a copy. The text of a
// missing function is empty.
//
//go:uintptrescapes
//go:noinline
func (l *Library) CallString(f int, words ...uintptr) string {
	fn := l.address(f)
	if fn == 0 {
		return ""
	}
	r, _, _ := purego.SyscallN(fn, words...)
	return GoString(*(**byte)(unsafe.Pointer(&r)))
}

// NewCallback returns a C function that calls fn, as purego.NewCallback does. It is never freed, so a package makes a fixed
// number of callbacks.
func NewCallback(fn any) (callback uintptr, err error) { return purego.NewCallback(fn), nil }
