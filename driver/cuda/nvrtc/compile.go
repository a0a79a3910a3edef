package nvrtc

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"
)

// Binary is compiled code.
type Binary struct {
	// Code is PTX text, a cubin or LTO-IR. The caller owns it.
	Code []byte
	// Format is the format of Code.
	Format Format
	// Names maps each name expression to its name in the code.
	Names map[string]string
	// Log is the compiler's log. It contains warnings.
	Log string
	// Diagnostics are the messages of the log.
	Diagnostics []Diagnostic
	// Cached reports whether the code is from the cache.
	Cached bool
}

// Compile compiles CUDA C++. name is the name of the source in diagnostics, such as scale.cu; no file of that name is read.
//
// If the source or an option is refused, the error is a [*CompileError] with the places of the mistakes. Invalid options match
// [ErrOptions], and so do includes that [Options.AnyInclude] does not permit. A missing library matches [ErrNoLibrary]. When ctx ends, the compilation is cancelled if the library supports
// it (since CUDA 12.8); otherwise Compile returns when the compiler does. Compile may be called concurrently.
func Compile(ctx context.Context, name, source string, o Options) (*Binary, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := errors.Join(noNUL("the name of the source", name), noNUL("the source", source)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	in, err := scanIncludes(name, source, &o)
	if err != nil {
		return nil, err
	}
	if err := Load(""); err != nil {
		return nil, err
	}
	flags, err := o.flags()
	if err != nil {
		return nil, err
	}
	key, cached := cacheKey(name, source, flags, &o, in)
	if cached {
		if data, ok := o.Cache.Get(key); ok {
			if b, err := decode(data); err == nil {
				b.Format, b.Cached = o.Format, true
				return b, nil
			}
		}
	}
	b, err := compile(ctx, name, source, flags, &o)
	if err != nil {
		return nil, err
	}
	if cached {
		// A file that changed meanwhile may be in the code or not.
		if in, err = scanIncludes(name, source, &o); err == nil {
			if after, ok := cacheKey(name, source, flags, &o, in); ok && after == key {
				_ = o.Cache.Put(key, encode(b)) // the code is compiled again if it is not stored
			}
		}
	}
	return b, nil
}

// live counts the library's programs that exist.
var live atomic.Int64

func compile(ctx context.Context, name, source string, flags []string, o *Options) (*Binary, error) {
	// nvJitLink keeps state in the thread, and contains the same assembler.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog, err := create(name, source, o.Headers)
	if err != nil {
		return nil, err
	}
	defer destroy(prog)
	if ctx.Done() != nil && Available("nvrtcSetFlowCallback") == nil {
		stop, err := cancelWith(ctx, prog)
		if err != nil {
			return nil, fmt.Errorf("nvrtc: %s: %w", name, err)
		}
		defer stop()
	}
	for _, expression := range o.Names {
		if err := AddNameExpression(prog, dl.CString(expression)).Err(); err != nil {
			return nil, fmt.Errorf("nvrtc: %s: name expression %q: %w", name, expression, err)
		}
	}
	options, first := dl.CStrings(flags)
	r := CompileProgram(prog, int32(len(options)), first)
	runtime.KeepAlive(options)
	if r == ERROR_CANCELLED && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	log := buffer(prog, GetProgramLogSize, GetProgramLog)
	b := &Binary{Format: o.Format, Log: dl.Text(log.data), Names: map[string]string{}}
	b.Diagnostics = parseLog(b.Log)
	if r != SUCCESS {
		if r.Missing() {
			return nil, r.Err()
		}
		return nil, &CompileError{Source: name, Result: r, Diagnostics: b.Diagnostics, Log: b.Log}
	}
	if err := b.take(prog, o); err != nil {
		return nil, fmt.Errorf("nvrtc: %s: %w", name, err)
	}
	return b, nil
}

// create creates a program. The caller destroys it.
func create(name, source string, headers map[string]string) (ProgramHandle, error) {
	var names, texts []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		names, texts = append(names, name), append(texts, headers[name])
	}
	nameArray, firstName := dl.CStrings(names)
	textArray, firstText := dl.CStrings(texts)
	var prog ProgramHandle
	err := CreateProgram(&prog, dl.CString(source), dl.CString(name), int32(len(names)), firstText, firstName).Err()
	runtime.KeepAlive(nameArray)
	runtime.KeepAlive(textArray)
	if err != nil {
		return 0, fmt.Errorf("nvrtc: %s: %w", name, err)
	}
	live.Add(1)
	return prog, nil
}

// destroy destroys a program. It calls the library again if that fails, because no later call would.
func destroy(prog ProgramHandle) {
	for range 2 {
		if DestroyProgram(&prog) == SUCCESS {
			live.Add(-1)
			return
		}
	}
}

// take copies the code and the lowered names from a compiled program.
func (b *Binary) take(prog ProgramHandle, o *Options) error {
	var get sized
	switch o.Format {
	case PTX:
		get = buffer(prog, GetPTXSize, GetPTX)
	case Cubin:
		get = buffer(prog, GetCUBINSize, GetCUBIN)
	case LTOIR:
		get = buffer(prog, GetLTOIRSize, GetLTOIR)
	}
	if get.err != nil {
		return fmt.Errorf("%s: %w", o.Format, get.err)
	}
	b.Code = get.data
	if o.Format == PTX && len(b.Code) > 0 && b.Code[len(b.Code)-1] == 0 {
		b.Code = b.Code[:len(b.Code)-1]
	}
	if len(b.Code) == 0 {
		return fmt.Errorf("the compiler returned no %s", o.Format)
	}
	for _, expression := range o.Names {
		var lowered *byte
		if err := GetLoweredName(prog, dl.CString(expression), &lowered).Err(); err != nil {
			return fmt.Errorf("name expression %q: %w", expression, err)
		}
		b.Names[expression] = dl.GoString(lowered)
	}
	return nil
}

type sized struct {
	data []byte
	err  error
}

// buffer reads data with a pair of functions: one for the size, one for the bytes.
func buffer(prog ProgramHandle, size func(ProgramHandle, *uint64) Result, get func(ProgramHandle, *byte) Result) sized {
	var n uint64
	if err := size(prog, &n).Err(); err != nil || n == 0 {
		return sized{err: err}
	}
	if n > 1<<32 {
		return sized{err: fmt.Errorf("a size of %d bytes is implausible", n)}
	}
	b := make([]byte, n)
	return sized{b, get(prog, &b[0]).Err()}
}

// Compilations that can be cancelled, by the number that the callback receives.
var (
	compilations  sync.Map // uintptr to context.Context
	lastNumber    atomic.Uintptr
	flowCallbacks = sync.OnceValues(func() (uintptr, error) { return dl.NewCallback(flow) })
)

// flow is called by the compiler, on any thread. 1 cancels the compilation.
func flow(number, _ uintptr) uintptr {
	if ctx, ok := compilations.Load(number); ok && ctx.(context.Context).Err() != nil {
		return 1
	}
	return 0
}

// cancelWith makes the compilation of prog end with ctx, until stop is called.
func cancelWith(ctx context.Context, prog ProgramHandle) (stop func(), err error) {
	callback, err := flowCallbacks()
	if err != nil {
		return nil, err
	}
	number := lastNumber.Add(1)
	compilations.Store(number, ctx)
	stop = func() { compilations.Delete(number) }
	if err := SetFlowCallback(prog, callback, number).Err(); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// Version returns the library's CUDA version.
func Version() (major, minor int, err error) {
	var a, b int32
	err = GetVersion(&a, &b).Err()
	return int(a), int(b), err
}

// Architectures returns the real architectures that the library compiles for, oldest first.
func Architectures() ([]string, error) {
	var n int32
	if err := GetNumSupportedArchs(&n).Err(); err != nil || n <= 0 {
		return nil, err
	}
	numbers := make([]int32, n)
	if err := GetSupportedArchs(&numbers[0]).Err(); err != nil {
		return nil, err
	}
	out := make([]string, n)
	for i, number := range numbers {
		out[i] = "sm_" + strconv.Itoa(int(number))
	}
	return out, nil
}

// InstallHeaders writes the headers that the library contains, such as cuda_fp16.h, into dir, which becomes a folder for
// [Options.IncludeDirs]. Headers that exist are kept. Libraries before CUDA 13.3 have none: the error is an
// [*UnsupportedError].
func InstallHeaders(dir string) error {
	if err := noNUL("the folder", dir); err != nil {
		return err
	}
	var log *byte
	if err := InstallBundledHeaders(dl.CString(dir), INSTALL_HEADERS_SKIP_IF_EXISTS, &log).Err(); err != nil {
		if text := dl.GoString(log); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return fmt.Errorf("nvrtc: headers in %s: %w", dir, err)
	}
	return nil
}

// stored is the part of a Binary that precedes its code in the cache.
type stored struct {
	Names map[string]string `json:"names,omitempty"`
	Log   string            `json:"log,omitempty"`
}

func encode(b *Binary) []byte {
	head, _ := json.Marshal(stored{b.Names, b.Log}) // texts always encode
	return append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(head))), head...), b.Code...)
}

func decode(data []byte) (*Binary, error) {
	if len(data) < 4 {
		return nil, errors.New("truncated entry")
	}
	n := binary.LittleEndian.Uint32(data)
	if uint64(n) > uint64(len(data)-4) {
		return nil, errors.New("truncated entry")
	}
	var s stored
	if err := json.Unmarshal(data[4:4+n], &s); err != nil {
		return nil, err
	}
	if s.Names == nil {
		s.Names = map[string]string{}
	}
	return &Binary{Code: data[4+n:], Names: s.Names, Log: s.Log, Diagnostics: parseLog(s.Log)}, nil
}
