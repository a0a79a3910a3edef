package nvjitlink

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
)

// Input is code to link.
type Input struct {
	// Name is the name of the input in logs.
	Name string
	// Type is the format of Data. [INPUT_ANY] detects it.
	Type InputType
	// Data is the code. Link borrows it.
	Data []byte
}

// ltoMagic begins LTO-IR.
var ltoMagic = []byte{0xed, 0x43, 0x4e, 0x7f}

// isLTO reports whether the input is LTO-IR. Those inside of fatbins, objects and libraries are found by the library.
func (in *Input) isLTO() bool {
	return in.Type == INPUT_LTOIR || in.Type == INPUT_ANY && bytes.HasPrefix(in.Data, ltoMagic)
}

// isPTX reports whether the input is PTX text. Every binary format has zero bytes at its beginning.
func (in *Input) isPTX() bool {
	text := bytes.TrimRight(in.Data, "\x00")
	return in.Type == INPUT_PTX ||
		in.Type == INPUT_ANY && bytes.IndexByte(text, 0) < 0 && bytes.Contains(text, []byte(".version"))
}

// PTX returns an input of PTX text.
func PTX(name string, data []byte) Input { return Input{name, INPUT_PTX, data} }

// LTOIR returns an input of LTO-IR, as nvrtc.Compile and nvcc -dlto return it.
func LTOIR(name string, data []byte) Input { return Input{name, INPUT_LTOIR, data} }

// Cubin returns an input of relocatable machine code.
func Cubin(name string, data []byte) Input { return Input{name, INPUT_CUBIN, data} }

// Fatbin returns an input that contains code for several architectures.
func Fatbin(name string, data []byte) Input { return Input{name, INPUT_FATBIN, data} }

// Object returns an input of a host object file with embedded device code.
func Object(name string, data []byte) Input { return Input{name, INPUT_OBJECT, data} }

// Library returns an input of a host archive with embedded device code, such as libcudadevrt.a.
func Library(name string, data []byte) Input { return Input{name, INPUT_LIBRARY, data} }

// Format is a format of linked code.
type Format uint8

const (
	// ToCubin links to machine code.
	ToCubin Format = iota
	// ToPTX links LTO-IR to PTX text.
	ToPTX
)

// Options are the options of [Link]. Arch is required.
type Options struct {
	// Arch is the real architecture, such as sm_90 or sm_90a. An architecture that the library does not know is an error, but
	// nvJitLink 12.9 crashes the process if it has linked LTO-IR before.
	Arch string
	// Format is the format of the result. The inputs of ToPTX must be LTO-IR.
	Format Format
	// Debug adds information for debuggers.
	Debug bool
	// LineInfo adds source lines for profilers.
	LineInfo bool
	// FastMath permits faster and less precise floating-point operations in LTO-IR.
	FastMath bool
	// MaxRegisters limits the registers of a thread. 0 means no limit.
	MaxRegisters int
	// KernelsUsed are the names of the kernels to keep in LTO-IR. If it is empty, all are kept.
	KernelsUsed []string
	// VariablesUsed are the names of the variables that the host uses. Others may be removed from LTO-IR.
	VariablesUsed []string
	// SplitCompile is the number of threads that compile LTO-IR. 0 means one.
	SplitCompile int
	// Verbose adds the resources of each kernel to the log.
	Verbose bool
	// Extra are further options, one string each, which are passed unchanged.
	Extra []string
	// Cache stores the result. nil disables it.
	Cache *jitcache.Cache
}

// ErrOptions means that options or inputs are invalid. No library was called.
var ErrOptions = errors.New("invalid options")

func invalid(format string, args ...any) error {
	return fmt.Errorf("nvjitlink: %w: %w", ErrOptions, fmt.Errorf(format, args...))
}

// ltoFlag makes the library link LTO-IR.
const ltoFlag = "-lto"

var (
	architecture = regexp.MustCompile(`^sm_[0-9]{2,3}[af]?$`)
	symbol       = regexp.MustCompile(`^[A-Za-z_.$][A-Za-z0-9_.$]*$`)
)

// check validates the options and the inputs.
func (o *Options) check(inputs []Input) error {
	switch {
	case !architecture.MatchString(o.Arch):
		return invalid("architecture %q is not of the form sm_90", o.Arch)
	case o.Format > ToPTX:
		return invalid("there is no format %d", o.Format)
	case o.MaxRegisters < 0 || o.SplitCompile < 0:
		return invalid("a number of registers or threads is negative")
	case len(inputs) == 0:
		return invalid("there are no inputs")
	}
	for _, in := range inputs {
		switch {
		case len(in.Data) == 0:
			return invalid("input %q is empty", in.Name)
		case strings.ContainsRune(in.Name, 0):
			return invalid("the name of input %q contains a NUL", in.Name)
		case o.Format == ToPTX && !in.isLTO():
			return invalid("input %q is not LTO-IR, which linking to PTX needs", in.Name)
		}
	}
	for _, name := range append(slices.Clone(o.KernelsUsed), o.VariablesUsed...) {
		if !symbol.MatchString(name) {
			return invalid("%q is not the name of a symbol", name)
		}
	}
	for _, option := range o.Extra {
		if option == "" || strings.ContainsRune(option, 0) {
			return invalid("option %q is empty or contains a NUL", option)
		}
	}
	return nil
}

// flags returns the options as the library takes them.
func (o *Options) flags(inputs []Input) []string {
	list := []string{"-arch=" + o.Arch}
	add := func(condition bool, flag string) {
		if condition {
			list = append(list, flag)
		}
	}
	// The library refuses LTO-IR without the option, and the option without LTO-IR.
	add(slices.ContainsFunc(inputs, func(in Input) bool { return in.isLTO() }), ltoFlag)
	add(o.Format == ToPTX, "-ptx")
	add(o.Debug, "-g")
	add(o.LineInfo, "-lineinfo")
	add(o.FastMath, "-ftz=1")
	add(o.FastMath, "-prec-div=0")
	add(o.FastMath, "-prec-sqrt=0")
	add(o.FastMath, "-fma=1")
	add(o.MaxRegisters > 0, "-maxrregcount="+strconv.Itoa(o.MaxRegisters))
	add(len(o.KernelsUsed) > 0, "-kernels-used="+strings.Join(o.KernelsUsed, ","))
	add(len(o.VariablesUsed) > 0, "-variables-used="+strings.Join(o.VariablesUsed, ","))
	add(o.SplitCompile > 0, "-split-compile="+strconv.Itoa(o.SplitCompile))
	add(o.Verbose, "-verbose")
	return append(list, o.Extra...)
}
