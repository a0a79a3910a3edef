package cu

import (
	"errors"
	"strconv"
	"strings"
)

// ErrNoLibrary is the absence of the driver's library: there is no NVIDIA driver on the host, or it is not where the
// dynamic linker looks, or this build has no support for it.
var ErrNoLibrary = errors.New("no CUDA driver library")

// Error is a code that the driver answered with, as an error. Errors with the same code are equal, so
// errors.Is(err, cu.ERROR_OUT_OF_MEMORY.Err()) works.
type Error struct {
	// Result is the driver's code; never [SUCCESS].
	Result Result
}

// Error is the code's name, its number and its meaning.
func (e Error) Error() string {
	s := e.Result.String()
	if t := e.Result.Text(); t != "" {
		s += " (" + strconv.Itoa(int(e.Result)) + "): " + t
	}
	return s
}

// Is makes CUDA_ERROR_NOT_SUPPORTED answer for [errors.ErrUnsupported].
func (e Error) Is(target error) bool {
	return target == errors.ErrUnsupported && e.Result == ERROR_NOT_SUPPORTED
}

// Version is a CUDA version as the driver counts: 1000 times the major plus 10 times the minor number.
type Version int32

// String is the version as people write it, such as 12.8; "unknown" for 0.
func (v Version) String() string {
	if v <= 0 {
		return "unknown"
	}
	return strconv.Itoa(int(v/1000)) + "." + strconv.Itoa(int(v%1000/10))
}

// UnsupportedError is a function that could not be called. It answers errors.Is for [errors.ErrUnsupported], and for
// [ErrNoLibrary] where that is the cause.
type UnsupportedError struct {
	// Function is the function's name in C, such as cuMemGetMemPool.
	Function string
	// Symbol is what was looked for in the library, such as cuMemAlloc_v2.
	Symbol string
	// Since is the CUDA version that brought the symbol; a driver for that version or a newer one has it. 0 if unknown.
	Since Version
	// Library is the library that does not have it; empty where there is no library.
	Library string
	// Err is the cause: a [*LibraryError], or what the dynamic linker said.
	Err error
}

// Error names the function and the version that it needs.
func (e *UnsupportedError) Error() string {
	if e.Library == "" {
		return e.Function + ": " + e.Err.Error()
	}
	s := e.Function + " is not in " + e.Library
	if e.Since > 0 {
		s += ": it needs a driver for CUDA " + e.Since.String() + " or newer"
	}
	return s
}

// Unwrap returns the cause.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is makes the error answer for [errors.ErrUnsupported].
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// LibraryError is the driver's library not having been found. It answers errors.Is for [ErrNoLibrary] and
// [errors.ErrUnsupported].
type LibraryError struct {
	// Tried are the names under which the library was looked for, in order; none in a build without CUDA.
	Tried []string
	// Err is why the first of them could not be opened.
	Err error
}

// Error says what was tried and what the dynamic linker answered.
func (e *LibraryError) Error() string {
	s := ErrNoLibrary.Error()
	if len(e.Tried) > 1 {
		s += " (tried " + strings.Join(e.Tried, ", ") + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *LibraryError) Unwrap() error { return e.Err }

// Is makes the error answer for [ErrNoLibrary] and [errors.ErrUnsupported].
func (e *LibraryError) Is(target error) bool {
	return target == ErrNoLibrary || target == errors.ErrUnsupported
}
