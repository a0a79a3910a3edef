package cuda

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Library is code that is loaded once for all devices of the process. A device compiles or loads it at the first use
// there. It needs CUDA 12.0. A [Module] is for one device and for older drivers.
type Library struct {
	resource
	dev    *Device
	handle cu.Library
	log    string
}

// LoadLibrary returns a library of PTX text, a cubin or a fatbin, which the caller owns. It borrows image, and checks it
// like [Device.LoadModule]. The error includes the compiler's messages.
func (d *Device) LoadLibrary(image []byte, opts JITOptions) (*Library, error) {
	return made(d, "load library", func() (*Library, error) {
		image, err := checkImage(image)
		if err != nil {
			return nil, err
		}
		l := &Library{dev: d}
		make := func(c cu.Context) (err error) {
			l.log, err = opts.load("cuLibraryLoadData", func(keys *cu.Jit_option, values *uintptr, n uint32) cu.Result {
				return loadLibrary(c, &l.handle, image, keys, values, n)
			})
			return err
		}
		return l, create(&l.resource, d, "library", 0, &l.handle, make, "cuLibraryUnload", cu.LibraryUnload)
	})
}

// Log returns the compiler's messages about the code, for which [JITOptions.Verbose] must be set. It is empty if nothing
// was compiled yet.
func (l *Library) Log() string { return l.log }

// Function returns the kernel with the name on the device that loaded the library. It returns [ErrNoSymbol] if the
// library has no such kernel.
func (l *Library) Function(name string) (*Function, error) { return l.FunctionOn(l.dev, name) }

// FunctionOn returns the kernel with the name on another device, which must stay open while the kernel is used. The
// library is loaded there if it was not before. It returns [ErrNoSymbol] if the library has no such kernel.
func (l *Library) FunctionOn(d *Device, name string) (*Function, error) {
	f := &Function{dev: d, mod: &l.resource, name: name}
	symbol, err := cName(name)
	if err == nil {
		err = f.with(func(c cu.Context) error {
			kernel := new(cu.Kernel)
			r := c.LibraryGetKernel(kernel, l.handle, symbol)
			if r == cu.ERROR_NOT_FOUND {
				return fmt.Errorf("%w: %q: %w", ErrNoSymbol, name, check("cuLibraryGetKernel", r))
			}
			if err := check("cuLibraryGetKernel", r); err != nil {
				return err
			}
			if err := check("cuKernelGetFunction", c.KernelGetFunction(&f.handle, *kernel)); err != nil {
				return err
			}
			return f.readParams(c)
		})
	}
	if err != nil {
		return nil, d.opError("function", err)
	}
	return f, nil
}

// Functions returns the names of all kernels of the library. It needs CUDA 12.4.
func (l *Library) Functions() ([]string, error) {
	var names []string
	err := l.call(func(c cu.Context) error {
		var n uint32
		if err := check("cuLibraryGetKernelCount", c.LibraryGetKernelCount(&n, l.handle)); err != nil || n == 0 {
			return err
		}
		kernels := make([]cu.Kernel, n)
		if err := check("cuLibraryEnumerateKernels", c.LibraryEnumerateKernels(&kernels[0], n, l.handle)); err != nil {
			return err
		}
		for _, k := range kernels {
			name := new(*byte)
			if err := check("cuKernelGetName", c.KernelGetName(name, k)); err != nil {
				return err
			}
			names = append(names, cu.GoString(*name))
		}
		return nil
	})
	return names, l.dev.opError("functions", err)
}

// Global returns the address on the device that loaded the library, and the size in bytes, of a variable. It is valid
// until Close. It returns [ErrNoSymbol] if the library has no such variable.
func (l *Library) Global(name string) (cu.DevicePtr, int64, error) {
	var p cu.DevicePtr
	var size uint64
	symbol, err := cName(name)
	if err == nil {
		err = l.call(func(c cu.Context) error {
			l.expose()
			r := c.LibraryGetGlobal(&p, &size, l.handle, symbol)
			if r == cu.ERROR_NOT_FOUND {
				return fmt.Errorf("%w: %q: %w", ErrNoSymbol, name, check("cuLibraryGetGlobal", r))
			}
			return check("cuLibraryGetGlobal", r)
		})
	}
	return p, int64(size), l.dev.opError("global", err)
}

// Close waits for the library's kernels and unloads it from all devices, like [Module.Close]. Its functions cannot be
// used after that. A second Close returns nil.
func (l *Library) Close() error { return l.dev.opError("close library", l.close()) }
