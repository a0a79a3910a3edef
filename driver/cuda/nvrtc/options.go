package nvrtc

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
)

// Format is a format of compiled code.
type Format uint8

const (
	// PTX is text that the driver compiles for the device when it loads a module.
	PTX Format = iota
	// Cubin is machine code for one architecture.
	Cubin
	// LTOIR is code for link-time optimisation, which package nvjitlink links to a cubin. NVRTC 11.8 lacks it.
	LTOIR
)

// String returns the format's name.
func (f Format) String() string {
	if int(f) < len(formats) {
		return formats[f]
	}
	return "Format(" + strconv.Itoa(int(f)) + ")"
}

var formats = [...]string{"PTX", "cubin", "LTO-IR"}

// Standard is a version of C++.
type Standard uint8

const (
	// DefaultStandard is the library's default, C++17 since CUDA 12.
	DefaultStandard Standard = iota
	// CPP11 is C++11.
	CPP11
	// CPP14 is C++14.
	CPP14
	// CPP17 is C++17.
	CPP17
	// CPP20 is C++20. NVRTC 11.8 lacks it.
	CPP20
)

var standards = [...]string{"", "c++11", "c++14", "c++17", "c++20"}

// Options are the options of [Compile]. The zero value compiles to PTX for the oldest architecture that the library supports.
type Options struct {
	// Arch is the architecture: a real one such as sm_90 or sm_90a, or a virtual one such as compute_90. [SM] returns the one
	// for a device's compute capability. A cubin needs a real architecture.
	Arch string
	// Format is the format of the result.
	Format Format
	// Headers are headers in memory, by the name with which the source includes them. They are found before files.
	Headers map[string]string
	// Names are name expressions: kernels and variables, such as scale<float> or &ns::table. Templates among them are
	// instantiated. [Binary.Names] contains their names in the compiled code.
	Names []string
	// Defines are macros with their values. An empty value defines the macro as 1.
	Defines map[string]string
	// IncludeDirs are folders that are searched for headers. Without AnyInclude, a compilation reads only files in these
	// folders, and files that links in them point to.
	IncludeDirs []string
	// AnyInclude permits includes of absolute paths, of parent folders, and of the value of a macro. Such a source can read each
	// file that this process can, and parts of the file appear in the log. Do not set it for a source of a foreign client. A
	// compilation that includes the value of a macro is not stored in the cache.
	AnyInclude bool
	// Standard is the version of C++.
	Standard Standard
	// Debug adds information for debuggers and disables optimisation.
	Debug bool
	// LineInfo adds source lines for profilers.
	LineInfo bool
	// FastMath permits faster and less precise floating-point operations.
	FastMath bool
	// Relocatable permits references to functions and variables of other compilations, which a linker resolves.
	Relocatable bool
	// MaxRegisters limits the registers of a thread. 0 means no limit.
	MaxRegisters int
	// Extra are further options, one string each, which are passed unchanged.
	Extra []string
	// Cache stores the result. nil disables it. A compilation with an option in Extra that reads or writes files is not stored.
	Cache *jitcache.Cache
}

// SM returns the architecture for a compute capability, such as sm_90 for 9.0.
func SM(major, minor int) string { return fmt.Sprintf("sm_%d%d", major, minor) }

var architecture = regexp.MustCompile(`^(sm|compute)_[0-9]{2,3}[af]?$`)

// ErrOptions means that options are invalid. No library was called.
var ErrOptions = errors.New("invalid options")

func invalid(format string, args ...any) error {
	return fmt.Errorf("nvrtc: %w: %w", ErrOptions, fmt.Errorf(format, args...))
}

// check validates the options.
func (o *Options) check() error {
	switch {
	case int(o.Format) >= len(formats):
		return invalid("there is no format %d", o.Format)
	case int(o.Standard) >= len(standards):
		return invalid("there is no standard %d", o.Standard)
	case o.Arch != "" && !architecture.MatchString(o.Arch):
		return invalid("architecture %q is not of the form sm_90 or compute_90", o.Arch)
	case o.Format == Cubin && !strings.HasPrefix(o.Arch, "sm_"):
		return invalid("a cubin needs a real architecture, such as sm_90, not %q", o.Arch)
	case o.MaxRegisters < 0:
		return invalid("%d registers are negative", o.MaxRegisters)
	}
	for name, value := range o.Defines {
		if !identifier.MatchString(name) {
			return invalid("macro %q is not an identifier", name)
		}
		if err := noNUL("the value of macro "+name, value); err != nil {
			return err
		}
	}
	for name, text := range o.Headers {
		if name == "" {
			return invalid("a header has no name")
		}
		if err := errors.Join(noNUL("the name of a header", name), noNUL("header "+name, text)); err != nil {
			return err
		}
	}
	for what, list := range map[string][]string{"a name expression": o.Names, "an option": o.Extra, "a folder": o.IncludeDirs} {
		for _, s := range list {
			if s == "" {
				return invalid("%s is empty", what)
			}
			if err := noNUL(what, s); err != nil {
				return err
			}
		}
	}
	return nil
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\([A-Za-z0-9_, .]*\))?$`)

// noNUL returns an error if text contains a NUL, because C would see only the part before it.
func noNUL(what, text string) error {
	if strings.ContainsRune(text, 0) {
		return invalid("%s contains a NUL", what)
	}
	return nil
}

// flags returns the options as the library takes them, in an order that does not depend on maps.
func (o *Options) flags() ([]string, error) {
	// By default, the compiler searches the current folder for headers.
	list := []string{"-no-source-include"}
	add := func(condition bool, flag string) {
		if condition {
			list = append(list, flag)
		}
	}
	add(o.Arch != "", "-arch="+o.Arch)
	add(o.Format == LTOIR, "-dlto")
	add(o.Standard != DefaultStandard, "-std="+standards[o.Standard])
	add(o.Debug, "-G")
	add(o.LineInfo, "-lineinfo")
	add(o.FastMath, "-use_fast_math")
	add(o.Relocatable, "-rdc=true")
	add(o.MaxRegisters > 0, "-maxrregcount="+strconv.Itoa(o.MaxRegisters))
	for _, name := range slices.Sorted(maps.Keys(o.Defines)) {
		value := o.Defines[name]
		if value == "" {
			value = "1"
		}
		list = append(list, "-D"+name+"="+value)
	}
	for _, dir := range o.IncludeDirs {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, invalid("folder %q: %w", dir, err)
		}
		list = append(list, "-I"+dir)
	}
	return append(list, o.Extra...), nil
}
