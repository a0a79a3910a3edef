package cu

import (
	"errors"
	"strconv"
	"strings"
)

// ErrNoLibrary means that the driver's library is missing: there is no NVIDIA driver on the host, the dynamic linker
// cannot find it, or this build has no support for it.
var ErrNoLibrary = errors.New("no CUDA driver library")

// Error is a driver's result code as an error. Errors with the same code are equal, so errors.Is(err,
// cu.ERROR_OUT_OF_MEMORY.Err()) works.
type Error struct {
	// Result is the driver's code, never [SUCCESS].
	Result Result
}

// Error returns the code's name, number and meaning.
func (e Error) Error() string {
	s := e.Result.String()
	if t := e.Result.Text(); t != "" {
		s += " (" + strconv.Itoa(int(e.Result)) + "): " + t
	}
	return s
}

// Is makes CUDA_ERROR_NOT_SUPPORTED match [errors.ErrUnsupported].
func (e Error) Is(target error) bool {
	return target == errors.ErrUnsupported && e.Result == ERROR_NOT_SUPPORTED
}

// Version is a CUDA version in the driver's format: 1000 times the major plus 10 times the minor number.
type Version int32

// String returns the version in the usual form, such as 12.8, and "unknown" for 0.
func (v Version) String() string {
	if v <= 0 {
		return "unknown"
	}
	return strconv.Itoa(int(v/1000)) + "." + strconv.Itoa(int(v%1000/10))
}

// UnsupportedError describes a function that could not be called. It matches [errors.ErrUnsupported] with errors.Is,
// and also [ErrNoLibrary] if that is the cause.
type UnsupportedError struct {
	// Function is the C name of the function, such as cuMemGetMemPool.
	Function string
	// Symbol is the symbol that was looked up in the library, such as cuMemAlloc_v2.
	Symbol string
	// Since is the CUDA version that introduced the symbol. Drivers for that version or newer have it. It is 0 if
	// unknown.
	Since Version
	// Library is the library that lacks the symbol. It is empty if there is no library.
	Library string
	// Err is the cause: a [*LibraryError], or the dynamic linker's error.
	Err error
}

// Error names the function and the CUDA version it requires.
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

// Is makes the error match [errors.ErrUnsupported].
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// LibraryError means that the driver's library was not found. It matches [ErrNoLibrary] and [errors.ErrUnsupported]
// with errors.Is.
type LibraryError struct {
	// Tried lists the names under which the library was searched, in order. It is empty in a build without CUDA.
	Tried []string
	// Err is the reason why the first of them could not be opened.
	Err error
}

// Error returns the names that were tried and the dynamic linker's error.
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

// Is makes the error match [ErrNoLibrary] and [errors.ErrUnsupported].
func (e *LibraryError) Is(target error) bool {
	return target == ErrNoLibrary || target == errors.ErrUnsupported
}
