package nvjitlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"
	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
)

// Linked is linked code.
type Linked struct {
	// Code is a cubin or PTX text. The caller owns it.
	Code []byte
	// Format is the format of Code.
	Format Format
	// InfoLog is the log of warnings and information.
	InfoLog string
	// Cached reports whether the code is from the cache.
	Cached bool
}

// LinkError means that the library refused an input or an option. It unwraps to an [Error].
type LinkError struct {
	// Input is the name of the input that was refused. It is empty if the error concerns the options or all inputs.
	Input string
	// Result is the library's code, such as [ERROR_PTX_COMPILE].
	Result Result
	// ErrorLog is the log of errors.
	ErrorLog string
	// InfoLog is the log of warnings and information.
	InfoLog string
}

// Error returns the input and the first line of the log, or the code's meaning if there is no log.
func (e *LinkError) Error() string {
	s := "nvjitlink: "
	if e.Input != "" {
		s += e.Input + ": "
	}
	for line := range strings.Lines(e.ErrorLog) {
		if line = strings.TrimSpace(line); line != "" {
			return s + line + " (" + e.Result.String() + ")"
		}
	}
	return s + e.Unwrap().Error()
}

// Unwrap returns the library's code as an [Error].
func (e *LinkError) Unwrap() error { return Error{Result: e.Result} }

// Link links inputs. LTO-IR is compiled for the architecture first.
//
// If the library refuses an input or an option, the error is a [*LinkError] with both logs. Invalid options match
// [ErrOptions]. A missing library matches [ErrNoLibrary]. A link that has begun is not cancelled when ctx ends. Link may be
// called concurrently.
func Link(ctx context.Context, inputs []Input, o Options) (*Linked, error) {
	if err := o.check(inputs); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := Load(""); err != nil {
		return nil, err
	}
	flags := o.flags(inputs)
	key, cached := cacheKey(inputs, flags, &o)
	if cached {
		if data, ok := o.Cache.Get(key); ok {
			if l, err := decode(data); err == nil {
				l.Format, l.Cached = o.Format, true
				return l, nil
			}
		}
	}
	l, err := linkAny(inputs, flags, o.Format)
	if err != nil {
		return nil, err
	}
	if cached {
		_ = o.Cache.Put(key, encode(l)) // the inputs are linked again if it is not stored
	}
	return l, nil
}

// live counts the library's links that exist.
var live atomic.Int64

// linkAny is link that also links LTO-IR inside of fatbins, objects and libraries, which only the library finds.
func linkAny(inputs []Input, flags []string, format Format) (*Linked, error) {
	l, err := link(inputs, flags, format)
	var refused *LinkError
	if errors.As(err, &refused) && refused.Result == ERROR_LTO_NOT_ENABLED && !slices.Contains(flags, ltoFlag) {
		return link(inputs, append(slices.Clip(flags), ltoFlag), format)
	}
	return l, err
}

func link(inputs []Input, flags []string, format Format) (*Linked, error) {
	// The library keeps state of a link in the thread. Links whose calls came from different threads crashed in it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The library may refer to options, names and data until the link is destroyed.
	options, first := dl.CStrings(flags)
	var borrowed []*byte
	defer func() { runtime.KeepAlive(options); runtime.KeepAlive(borrowed) }()
	var handle Handle
	r := Create(&handle, uint32(len(options)), first)
	if handle != 0 {
		live.Add(1)
		defer func() {
			for range 2 { // no later call would destroy it
				if Destroy(&handle) == SUCCESS {
					live.Add(-1)
					return
				}
			}
		}()
	}
	if r != SUCCESS {
		return nil, failure(handle, "", r)
	}
	for _, in := range inputs {
		data := in.Data
		if in.isPTX() && data[len(data)-1] != 0 {
			data = append(append(make([]byte, 0, len(data)+1), data...), 0) // the library expects a NUL
		}
		name := dl.CString(in.Name)
		borrowed = append(borrowed, name, &data[0])
		if r := AddData(handle, in.Type, unsafe.Pointer(&data[0]), uint64(len(data)), name); r != SUCCESS {
			return nil, failure(handle, in.Name, r)
		}
	}
	if r := Complete(handle); r != SUCCESS {
		return nil, failure(handle, "", r)
	}
	size, get := GetLinkedCubinSize, GetLinkedCubin
	if format == ToPTX {
		size, get = GetLinkedPtxSize, func(h Handle, p unsafe.Pointer) Result { return GetLinkedPtx(h, (*byte)(p)) }
	}
	code, r := read(handle, size, get)
	if r != SUCCESS {
		return nil, failure(handle, "", r)
	}
	if format == ToPTX && len(code) > 0 && code[len(code)-1] == 0 {
		code = code[:len(code)-1]
	}
	if len(code) == 0 {
		return nil, errors.New("nvjitlink: the linker returned no code")
	}
	return &Linked{Code: code, Format: format, InfoLog: infoLog(handle)}, nil
}

// failure returns a LinkError with both logs, or an UnsupportedError for a missing function.
func failure(handle Handle, input string, r Result) error {
	if r.Missing() {
		return fmt.Errorf("nvjitlink: %w", r.Err())
	}
	e := &LinkError{Input: input, Result: r}
	if handle != 0 {
		log, _ := read(handle, GetErrorLogSize, func(h Handle, p unsafe.Pointer) Result { return GetErrorLog(h, (*byte)(p)) })
		e.ErrorLog, e.InfoLog = dl.Text(log), infoLog(handle)
	}
	return e
}

func infoLog(handle Handle) string {
	log, _ := read(handle, GetInfoLogSize, func(h Handle, p unsafe.Pointer) Result { return GetInfoLog(h, (*byte)(p)) })
	return dl.Text(log)
}

// read reads data with a pair of functions: one for the size, one for the bytes.
func read(handle Handle, size func(Handle, *uint64) Result, get func(Handle, unsafe.Pointer) Result) ([]byte, Result) {
	var n uint64
	if r := size(handle, &n); r != SUCCESS || n == 0 {
		return nil, r
	}
	if n > 1<<32 {
		return nil, ERROR_INTERNAL
	}
	b := make([]byte, n)
	return b, get(handle, unsafe.Pointer(&b[0]))
}

// Version returns the library's CUDA version.
func Version() (major, minor int, err error) {
	var a, b uint32
	err = GetVersion(&a, &b).Err()
	return int(a), int(b), err
}

// cacheKey returns the key of a link. ok is false if there is no cache.
func cacheKey(inputs []Input, flags []string, o *Options) (key jitcache.Key, ok bool) {
	if o.Cache == nil {
		return key, false
	}
	major, minor, err := Version()
	if err != nil {
		return key, false
	}
	parts := []string{"nvjitlink", lib.Identity(), fmt.Sprint(major, ".", minor, " ", o.Format, " ", len(flags), " ", len(inputs))}
	parts = append(parts, flags...)
	for _, in := range inputs {
		parts = append(parts, in.Name, fmt.Sprint(in.Type), string(in.Data))
	}
	return jitcache.NewKey(parts...), true
}

func encode(l *Linked) []byte {
	return append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(l.InfoLog))), l.InfoLog...), l.Code...)
}

func decode(data []byte) (*Linked, error) {
	if len(data) < 4 || uint64(binary.LittleEndian.Uint32(data)) > uint64(len(data)-4) {
		return nil, errors.New("truncated entry")
	}
	end := 4 + binary.LittleEndian.Uint32(data)
	return &Linked{InfoLog: string(data[4:end]), Code: data[end:]}, nil
}
