//go:build linux && (amd64 || arm64) && !nocuda

package dl

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/ebitengine/purego"
)

// Open opens the library from path, or, if path is empty, from the file that the environment names or from the default
// places. It returns the handle and the name under which the library was opened. The library is never closed. The error is
// a [*LibraryError].
func Open(c *Config, path string) (handle uintptr, name string, err error) {
	if path == "" {
		path = os.Getenv(c.Env)
	}
	names := []string{path}
	if path == "" {
		names = append(append([]string(nil), c.Names...), installed(c.Names, c.Wheel, os.Getenv)...)
	}
	failed := c.failed(names, nil)
	if isStatic() {
		failed.Err = errStatic
		return 0, "", failed
	}
	// purego calls dlerror separately, which must happen on the same thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, name := range names {
		handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil && handle != 0 {
			return handle, name, nil
		}
		// The reason of a library that exists is worth more than that of a name that was not found.
		if found := err != nil && !notFound(name, err); failed.Err == nil || found && failed.Found == "" {
			failed.Err = err
			if found {
				failed.Found = name
			}
		}
	}
	return 0, "", failed
}

// notFound reports whether the dynamic linker did not find the library itself. The linker's only description of a failure is
// a text. If the text is another one, such as that of a missing dependency, the library counts as found, and the text is shown.
func notFound(name string, err error) bool {
	return strings.HasPrefix(err.Error(), name+": cannot open shared object file: No such file or directory") ||
		strings.HasPrefix(err.Error(), "Error loading shared library "+name+": No such file or directory") // musl
}

var errStatic = errors.New("the program is linked statically with the C library, which cannot open libraries: link it dynamically")

// isStatic reports whether the program was linked without a dynamic linker. glibc's dlopen crashes in such a program.
// Programs without cgo are linked dynamically if they contain purego.
var isStatic = sync.OnceValue(func() bool {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil || strings.HasPrefix(filepath.Base(exe), "ld-") || strings.HasPrefix(filepath.Base(exe), "ld.so") {
		return false // unknown, or the dynamic linker was started with the program as its argument
	}
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // it was only read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
})
