package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Module is code loaded on a device.
type Module struct {
	resource
	dev    *Device
	handle cu.Module
	log    string
}

// fatbinMagic begins a fatbin, which contains binaries and PTX for several architectures.
const fatbinMagic = 0xba55ed50

// emCUDA is the ELF machine number of a cubin.
const emCUDA = 190

// LoadModule returns a module of PTX text, a cubin or a fatbin. The caller owns it. LoadModule borrows image. PTX is
// compiled for the device, which takes time; an error of the compiler is a [*CompileError] with its messages. An image of
// another format, or a truncated one, is refused before the driver reads it.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	return d.LoadModuleWith(image, JITOptions{})
}

// LoadModuleWith is LoadModule with options for the compiler.
func (d *Device) LoadModuleWith(image []byte, opts JITOptions) (*Module, error) {
	return made(d, "load module", func() (*Module, error) {
		image, err := checkImage(image)
		if err != nil {
			return nil, err
		}
		m := &Module{dev: d}
		make := func(c cu.Context) (err error) {
			m.log, err = opts.load("cuModuleLoadDataEx", func(keys *cu.Jit_option, values *uintptr, n uint32) cu.Result {
				return loadModule(c, &m.handle, image, keys, values, n)
			})
			return err
		}
		return m, create(&m.resource, d, "module", 0, &m.handle, make, "cuModuleUnload", cu.ModuleUnload)
	})
}

// Log returns the compiler's messages about the code, for which [JITOptions.Verbose] must be set.
func (m *Module) Log() string { return m.log }

// checkImage ensures that the driver, which receives no length, stays within the image.
func checkImage(image []byte) ([]byte, error) {
	switch {
	case len(image) >= 4 && binary.LittleEndian.Uint32(image) == fatbinMagic:
		// magic u32, version u16, header size u16, size u64 of the rest
		if len(image) < 16 {
			return nil, invalid("a fatbin of %d bytes", len(image))
		}
		header, size := uint64(binary.LittleEndian.Uint16(image[6:])), binary.LittleEndian.Uint64(image[8:])
		if header < 16 || header > uint64(len(image)) || size > uint64(len(image))-header {
			return nil, invalid("a fatbin of %d bytes whose header has %d", len(image), size)
		}
		return image, nil
	case bytes.HasPrefix(image, []byte(elf.ELFMAG)):
		return image, checkCubin(image)
	case bytes.Contains(image, []byte(".version")):
		text := bytes.TrimRight(image, "\x00")
		if bytes.IndexByte(text, 0) >= 0 {
			return nil, invalid("PTX text with a zero byte inside")
		}
		return append(bytes.Clone(text), 0), nil
	}
	return nil, invalid("an image of %d bytes that is not PTX text, a cubin or a fatbin", len(image))
}

func checkCubin(image []byte) error {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("%w: %w", invalid("a cubin"), err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != emCUDA {
		return invalid("an ELF file for %s, not for CUDA", f.Machine)
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOBITS && (s.Offset > uint64(len(image)) || s.FileSize > uint64(len(image))-s.Offset) {
			return invalid("a cubin with truncated section %s", s.Name)
		}
	}
	return nil
}

// cName converts a name to a C string. It fails if the name is empty or contains a zero byte.
func cName(name string) (*byte, error) {
	if name == "" || strings.IndexByte(name, 0) >= 0 {
		return nil, invalid("name %q is empty or contains a zero byte", name)
	}
	return &append([]byte(name), 0)[0], nil
}

// ErrNoSymbol means that the module has no function or variable with the name.
var ErrNoSymbol = errors.New("the module has no such symbol")

// Global returns the address and size in bytes of a variable of the module, valid until the module is closed. It
// returns [ErrNoSymbol] if the module has no such variable.
func (m *Module) Global(name string) (cu.DevicePtr, int64, error) {
	var p cu.DevicePtr
	var size uint64
	err := m.lookup(name, func(c cu.Context, name *byte) (string, cu.Result) {
		m.expose()
		return "cuModuleGetGlobal", c.ModuleGetGlobal(&p, &size, m.handle, name)
	})
	return p, int64(size), m.dev.opError("global", err)
}

func (m *Module) lookup(name string, get func(c cu.Context, name *byte) (string, cu.Result)) error {
	symbol, err := cName(name)
	if err != nil {
		return err
	}
	return m.call(func(c cu.Context) error {
		fn, r := get(c, symbol)
		if r == cu.ERROR_NOT_FOUND {
			return fmt.Errorf("%w: %q: %w", ErrNoSymbol, name, check(fn, r))
		}
		return check(fn, r)
	})
}

// Close waits for the module's kernels and unloads it. Its functions cannot be used after that. If the address of a
// variable or the handle of a function was exposed, Close waits for all work of the device. During a stream capture
// that forbids the wait, the unloading is deferred ([Device.Stats]). A second Close returns nil.
func (m *Module) Close() error { return m.dev.opError("close module", m.close()) }
