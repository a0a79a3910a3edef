package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Module is code loaded on a device.
type Module struct {
	resource
	dev    *Device
	handle cu.Module
}

// fatbinMagic begins a fatbin: binaries and PTX for several architectures.
const fatbinMagic = 0xba55ed50

// emCUDA is the machine of a cubin, in ELF's numbers.
const emCUDA = 190

// LoadModule returns an owned module of PTX text, a cubin or a fatbin; it borrows image. PTX is compiled for the
// device, which takes time; what the compiler complains about is in the error. An image that is none of these, or is
// cut off, is refused before the driver sees it.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	m, err := d.loadModule(image)
	if err != nil {
		return nil, d.opError("load module", err)
	}
	return m, nil
}

func (d *Device) loadModule(image []byte) (*Module, error) {
	image, err := checkImage(image)
	if err != nil {
		return nil, err
	}
	if err := d.hold(); err != nil {
		return nil, err
	}
	defer d.p.put()
	m := &Module{dev: d}
	if err := d.p.do(func() error { return loadImage(&m.handle, image) }); err != nil {
		return nil, err
	}
	h := m.handle
	err = m.own(d.p, "module", 0, func() error {
		cu.CtxSynchronize() // kernels under way; what it reports is theirs
		return check("cuModuleUnload", cu.ModuleUnload(h))
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// checkImage makes sure that the driver, which is told no length, does not read past the end.
func checkImage(image []byte) ([]byte, error) {
	switch {
	case len(image) >= 4 && binary.LittleEndian.Uint32(image) == fatbinMagic:
		// magic u32, version u16, header size u16, size u64 of what follows
		if len(image) < 16 {
			return nil, invalid("a fatbin of %d bytes", len(image))
		}
		header, size := uint64(binary.LittleEndian.Uint16(image[6:])), binary.LittleEndian.Uint64(image[8:])
		if header < 16 || header > uint64(len(image)) || size > uint64(len(image))-header {
			return nil, invalid("a fatbin of %d bytes that says it has %d", len(image), size)
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
	return nil, invalid("%d bytes that are neither PTX text nor a cubin nor a fatbin", len(image))
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
			return invalid("a cubin whose section %s is cut off", s.Name)
		}
	}
	return nil
}

// loadImage asks the compiler for its complaints and adds them to the error.
func loadImage(h *cu.Module, image []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	log := make([]byte, 8<<10)
	pin.Pin(&log[0])
	options := []cu.Jit_option{cu.JIT_ERROR_LOG_BUFFER, cu.JIT_ERROR_LOG_BUFFER_SIZE_BYTES}
	values := []uintptr{uintptr(unsafe.Pointer(&log[0])), uintptr(len(log))}
	err := check("cuModuleLoadDataEx",
		cu.ModuleLoadDataEx(h, unsafe.Pointer(&image[0]), uint32(len(options)), &options[0], &values[0]))
	if text := strings.TrimSpace(cString(log)); err != nil && text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// cName is a name for C; one with a zero byte inside names nothing.
func cName(name string) (*byte, error) {
	if name == "" || strings.IndexByte(name, 0) >= 0 {
		return nil, invalid("the name %q", name)
	}
	return &append([]byte(name), 0)[0], nil
}

// ErrNoSymbol is a function or variable that the module does not have.
var ErrNoSymbol = errors.New("the module has no such symbol")

// Global returns the address and size in bytes of a variable of the module, valid until the module is closed. A name
// that there is not is [ErrNoSymbol].
func (m *Module) Global(name string) (cu.DevicePtr, int64, error) {
	var p cu.DevicePtr
	var size uint64
	err := m.lookup(name, func(c *byte) (string, cu.Result) {
		m.expose()
		return "cuModuleGetGlobal", cu.ModuleGetGlobal(&p, &size, m.handle, c)
	})
	return p, int64(size), m.dev.opError("global", err)
}

func (m *Module) lookup(name string, get func(c *byte) (string, cu.Result)) error {
	c, err := cName(name)
	if err != nil {
		return err
	}
	return m.call(func() error {
		fn, r := get(c)
		if r == cu.ERROR_NOT_FOUND {
			return fmt.Errorf("%w: %q: %w", ErrNoSymbol, name, check(fn, r))
		}
		return check(fn, r)
	})
}

// Close waits for all work of the context and unloads the module; its functions are of no use then. A second Close is
// nil.
func (m *Module) Close() error { return m.dev.opError("close module", m.close()) }
